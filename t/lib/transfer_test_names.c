/*
 * transfer_test_names.c
 *		Names for t/015_transfer.pl, in place of the resolver (LD_PRELOAD).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

typedef int (*Function) (const char *, const char *, const struct addrinfo *,
						 struct addrinfo **);

int
getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
			struct addrinfo **answer)
{
	static const char *const names[][2] = {
		{"metadata.test", "169.254.169.254"},
		{"mail.test", "127.0.0.1"},
		{"other.test", "127.0.0.1"},
	};
	Function	real = (Function) dlsym(RTLD_NEXT, "getaddrinfo");

	if (name && strcmp(name, "slow.test") == 0)
	{
		sleep(20);
		return EAI_AGAIN;
	}
	if (name && strcmp(name, "unknown.test") == 0)
		return EAI_NONAME;
	for (int i = 0; name && i < 3; i++)
	{
		if (strcmp(name, names[i][0]) == 0)
			name = names[i][1];
	}
	return real(name, service, hints, answer);
}
