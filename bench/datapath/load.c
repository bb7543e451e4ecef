/*
 * Clients and a server of TCP in one process, whose sockets are in different network namespaces.
 *
 *     load SERVER_NAMESPACE PORT
 *
 * listens in a namespace, and reads lines from its standard input:
 *
 *     connect|request CLIENT_NAMESPACE SOURCE ADDRESS PORT COUNT
 *
 * CLIENT_NAMESPACE is the path of one, or - for that in which this program was started.
 * `connect` makes so many connections, one after the other; the client closes each at once, by a reset.
 * `request` sends so many requests on one connection, each answered before the next. A line of JSON says how many
 * seconds that took, and how many nanoseconds each connect(2).
 *
 * The kernel delivers a packet to the other end within the system call that sends it. So nobody waits, no other process
 * is woken, and what a call costs is the packets' way and these system calls. No source port is used twice within
 * 50,000 connections: IPVS and conntrack would have to recognize the old one.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FIRST_PORT 10000
#define LAST_PORT 60000
#define FAILS_AFTER 10
#define MESSAGE 64

static const char *failed;

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* Remembers the first call that failed, with its error. */
static int done(int result, const char *call)
{
	static char text[100];
	if (result < 0 && !failed) {
		snprintf(text, sizeof text, "%s: %s", call, strerror(errno));
		failed = text;
	}
	return result;
}

static int opened(const char *namespace)
{
	return done(open(namespace, O_RDONLY | O_CLOEXEC), "open a namespace");
}

static void enter(int namespace)
{
	done(setns(namespace, CLONE_NEWNET), "setns");
}

static struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in made = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, address, &made.sin_addr);
	return made;
}

static void set(int fd, int level, int option, const void *value, socklen_t size)
{
	done(setsockopt(fd, level, option, value, size), "setsockopt");
}

/* A socket of a client, bound to the next port that nobody has. */
static int client(const char *source)
{
	static int port = FIRST_PORT;
	struct sockaddr_in from;
	struct linger by_reset = { .l_onoff = 1 };
	struct timeval limit = { .tv_sec = FAILS_AFTER };
	int fd = done(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	set(fd, SOL_SOCKET, SO_LINGER, &by_reset, sizeof by_reset);
	set(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	set(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	do {
		from = at(source, port);
		port = port == LAST_PORT ? FIRST_PORT : port + 1;
	} while (bind(fd, (struct sockaddr *)&from, sizeof from) < 0 && errno == EADDRINUSE);
	return fd;
}

static long connects(int listener, const char *source, struct sockaddr_in to, int count, long *taken)
{
	long began = now();
	for (int number = 0; number < count && !failed; number++) {
		int fd = client(source);
		long sent = now();
		done(connect(fd, (struct sockaddr *)&to, sizeof to), "connect");
		taken[number] = now() - sent;
		int accepted = failed ? -1 : done(accept4(listener, NULL, NULL, SOCK_CLOEXEC), "accept");
		close(fd); /* sends the reset */
		close(accepted);
	}
	return now() - began;
}

static void pass(int from, int to)
{
	char message[MESSAGE] = "";
	done(send(from, message, sizeof message, MSG_NOSIGNAL), "send");
	if (!failed && done(recv(to, message, sizeof message, MSG_WAITALL), "recv") != sizeof message)
		failed = "recv: closed";
}

static long requests(int listener, const char *source, struct sockaddr_in to, int count)
{
	struct timeval limit = { .tv_sec = FAILS_AFTER };
	int on = 1, near = client(source), far = -1;
	long began = 0;
	done(connect(near, (struct sockaddr *)&to, sizeof to), "connect");
	if (!failed)
		far = done(accept4(listener, NULL, NULL, SOCK_CLOEXEC), "accept");
	if (!failed) {
		set(near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		set(far, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		set(far, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		pass(near, far);
		pass(far, near);
	}
	began = now();
	for (int number = 0; number < count && !failed; number++) {
		pass(near, far);
		pass(far, near);
	}
	began = now() - began;
	close(near);
	close(far);
	return began;
}

int main(int argc, char **argv)
{
	char what[16], namespace[256], source[64], address[64];
	int port, count, on = 1, listener, home = opened("/proc/self/ns/net");
	struct sockaddr_in here;
	struct timeval limit = { .tv_sec = FAILS_AFTER };

	if (argc != 3)
		return 2;
	here = at("0.0.0.0", atoi(argv[2]));
	enter(opened(argv[1]));
	listener = done(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	set(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	set(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	done(bind(listener, (struct sockaddr *)&here, sizeof here), "bind");
	done(listen(listener, 128), "listen");
	setlinebuf(stdout);
	while (scanf("%15s %255s %63s %63s %d %d", what, namespace, source, address, &port, &count) == 6) {
		struct sockaddr_in to = at(address, port);
		int of_connects = strcmp(what, "connect") == 0;
		long *taken = calloc(count, sizeof *taken), all;
		int place = strcmp(namespace, "-") == 0 ? dup(home) : opened(namespace);

		enter(place);
		close(place);
		all = of_connects ? connects(listener, source, to, count, taken) : requests(listener, source, to, count);
		if (failed) {
			printf("{\"error\": \"%s\"}\n", failed);
			failed = NULL;
			free(taken);
			continue;
		}
		printf("{\"seconds\": %.9f, \"nanoseconds\": [", all / 1e9);
		for (int number = 0; of_connects && number < count; number++)
			printf(number ? ", %ld" : "%ld", taken[number]);
		printf("]}\n");
		free(taken);
	}
	return 0;
}
