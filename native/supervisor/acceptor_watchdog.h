/*
 * What an acceptor has of a runtime is lost with it when it is killed: a connection, or the listener that came by it; the container would run
 * on with ENOSYS for every call. So the acceptor has a watchdog from before it accepts until the tenant has one (watchdog.c). It shares the
 * acceptor's table of descriptors (CLONE_FILES of clone(2)), so it has at each moment what the acceptor has. When the acceptor is killed it
 * starts another one, in case that there is no successor, and ends what calls with those listeners (drain.h).
 */
#ifndef NVC_SUPERVISOR_ACCEPTOR_WATCHDOG_H
#define NVC_SUPERVISOR_ACCEPTOR_WATCHDOG_H

#include "monitor.h"

/* argv: the acceptor's. Nothing where there is one; another one in the place of one that was killed. Where none can be made now, a later call makes it. */
void acceptor_watchdog_start (struct monitor *self, char **argv);
/* The acceptor is a monitor now, or ends by itself. */
void acceptor_watchdog_stop (struct monitor *self);

#endif
