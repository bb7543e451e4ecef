/*
 * A host that is unlike this one, for a User Mode Linux that is started with it preloaded.
 *
 * LAB_XSAVE_AREA=BYTES: the processor's XSAVE area has that many bytes. Held against a host with AMX (11,008 bytes):
 * PTRACE_SETREGSET of NT_X86_XSTATE with a shorter buffer is refused with EFAULT, a whole one is taken, and reading
 * gives as much as the buffer holds.
 * LAB_NO_PTRACE=1: no process may be traced, as under a container's seccomp profile or Yama: EPERM.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/uio.h>

#define PTRACE_SETREGSET 0x4205
#define NT_X86_XSTATE 0x202

long ptrace(int request, ...)
{
	long (*next)(int, ...) = dlsym(RTLD_NEXT, "ptrace");
	const char *area = getenv("LAB_XSAVE_AREA");
	va_list arguments;
	va_start(arguments, request);
	int pid = va_arg(arguments, int);
	void *address = va_arg(arguments, void *);
	struct iovec *data = va_arg(arguments, void *);
	va_end(arguments);

	if (getenv("LAB_NO_PTRACE")) {
		errno = EPERM;
		return -1;
	}
	if (area && request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
		unsigned int a, real = 0, c, d;

		if (data->iov_len < strtoul(area, NULL, 10)) {
			errno = EFAULT;
			return -1;
		}
		__get_cpuid_count(0xd, 0, &a, &real, &c, &d);
		struct iovec shortened = { data->iov_base, real };
		return next(request, pid, address, &shortened);
	}
	return next(request, pid, address, data);
}
