/* In the place of guard/driver_usage.c, but for what the driver reports of a process, which each test has of its own: no driver. */
#ifndef NVC_TEST_NO_DRIVER_USAGE_H
#define NVC_TEST_NO_DRIVER_USAGE_H

#include "guard/driver_usage.h"

struct driver_usage *driver_usage_open (struct privsep *privsep)
{
    (void) privsep;
    return NULL;
}

void driver_usage_close (struct driver_usage *usage) { (void) usage; }

bool driver_usage_has_client (struct driver_usage *usage, uint32_t client)
{
    (void) usage;
    (void) client;
    return false;
}

#endif
