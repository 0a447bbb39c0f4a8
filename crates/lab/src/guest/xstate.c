/* Before PTRACE_SETREGSET of NT_X86_XSTATE, asks for the whole state and lays over it what the caller has: see xstate.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long ptrace_function(enum __ptrace_request, ...);

static ptrace_function *next;
/* Not on the stack, which here is that of a kernel thread. The guest has one processor. */
static char whole[64 << 10];

__attribute__((constructor)) static void find_next(void)
{
	next = (ptrace_function *)dlsym(RTLD_NEXT, "ptrace");
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list rest;
	va_start(rest, request);
	pid_t pid = va_arg(rest, pid_t);
	void *address = va_arg(rest, void *);
	void *data = va_arg(rest, void *);
	va_end(rest);
	if (request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE)
		return next(request, pid, address, data);
	struct iovec *given = data, all = { whole, sizeof whole };
	long result = next(PTRACE_GETREGSET, pid, address, &all);
	if (result < 0)
		return result;
	memcpy(whole, given->iov_base, given->iov_len < all.iov_len ? given->iov_len : all.iov_len);
	return next(PTRACE_SETREGSET, pid, address, &all);
}
