/*
 * The node's prober, in which an attacker executes code: nvc-prober, linked with this in place of confine, after which it is. NVC_TEST_TARGETS: pids of processes. NVC_TEST_COUNTERS: a descriptor of counters that it has, for reading.
 */
#include "guard/usage_page.h"
#include "hostile.h"
#include "supervisor/confine.h"

int __real_confine (uid_t user);
int __wrap_confine (uid_t user);

int __wrap_confine (uid_t user)
{
    const char *targets = getenv ("NVC_TEST_TARGETS"), *counters = getenv ("NVC_TEST_COUNTERS"), *page = getenv ("NVC_TEST_PAGE");
    int result = __real_confine (user), pid, size = 0;

    attack_host ();
    attack_amounts ();
    for (; targets != NULL && sscanf (targets, "%d%n", &pid, &size) == 1; targets += size + (targets[size] == ','))
        attack_process (pid);
    if (counters != NULL)
        say ("write-counters", 0, pwrite (atoi (counters), "x", 1, 0));
    if (page != NULL)
        say ("grow-page", 0, pwrite (atoi (page), "x", 1, (off_t) sizeof (struct usage_page)));
    say ("done", 0, 0);
    return result;
}
