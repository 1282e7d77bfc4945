/*
 * The node's prober, in which an attacker executes code: nvc-prober, linked with this in place of driver_client_make, which it calls once it
 * is confined. NVC_TEST_TARGETS: pids of processes. NVC_TEST_COUNTERS: a descriptor of counters that it has, for reading.
 */
#include "guard/driver_client.h"
#include "guard/usage_page.h"
#include "hostile.h"

bool __real_driver_client_make (struct driver_client *self);
bool __wrap_driver_client_make (struct driver_client *self);

bool __wrap_driver_client_make (struct driver_client *self)
{
    const char *targets = getenv ("NVC_TEST_TARGETS"), *counters = getenv ("NVC_TEST_COUNTERS"), *page = getenv ("NVC_TEST_PAGE");
    int pid, size = 0;

    attack_host ();
    attack_amounts ();
    for (; targets != NULL && sscanf (targets, "%d%n", &pid, &size) == 1; targets += size + (targets[size] == ','))
        attack_process (pid);
    if (counters != NULL)
        say ("write-counters", 0, pwrite (atoi (counters), "x", 1, 0));
    if (page != NULL)
        say ("grow-page", 0, pwrite (atoi (page), "x", 1, (off_t) sizeof (struct usage_page)));
    say ("done", 0, 0);
    return __real_driver_client_make (self);
}
