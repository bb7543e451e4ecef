/*
 * Lets User Mode Linux before 6.13 run where the processor's XSAVE area is larger than that kernel knows (AMX: 11,008
 * bytes instead of 2,696). It is preloaded into the machine.
 *
 * Such a kernel writes a process's floating-point registers back by ptrace(PTRACE_SETREGSET, NT_X86_XSTATE) with the
 * bytes that it has read. The host refuses an area that is shorter than the whole one (EFAULT). Here it gets the whole
 * one: the given bytes, and zeros. XSTATE_BV, which is among the given bytes, says that the rest is not in use.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define PTRACE_SETREGSET 0x4205
#define NT_X86_XSTATE 0x202
#define LARGEST 65536

/* CPUID leaf 0xD, subleaf 0: the bytes of the area for the states that this host has switched on. A test may say so. */
static size_t area(void)
{
	unsigned int a, b = 0, c, d;
	const char *told = getenv("LAB_XSAVE_AREA");

	if (told)
		return strtoul(told, NULL, 10);
	return __get_cpuid_count(0xd, 0, &a, &b, &c, &d) ? b : 0;
}

long ptrace(int request, ...)
{
	static long (*next)(int, ...);
	static size_t whole;
	static char buffer[LARGEST];
	va_list arguments;
	va_start(arguments, request);
	int pid = va_arg(arguments, int);
	void *address = va_arg(arguments, void *);
	struct iovec *data = va_arg(arguments, void *);
	va_end(arguments);

	if (!next) {
		next = dlsym(RTLD_NEXT, "ptrace");
		whole = area();
	}
	if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE && data->iov_len < whole && whole <= LARGEST) {
		struct iovec extended = { buffer, whole };

		memcpy(buffer, data->iov_base, data->iov_len);
		memset(buffer + data->iov_len, 0, whole - data->iov_len);
		return next(request, pid, address, &extended);
	}
	return next(request, pid, address, data);
}
