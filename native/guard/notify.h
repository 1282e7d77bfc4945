/* Notifications. */
#ifndef NVC_GUARD_NOTIFY_H
#define NVC_GUARD_NOTIFY_H

#include <stdbool.h>

struct tenant;

/* Receives one notification from a listener and answers it. false: the listener is done. */
bool notify_handle (struct tenant *tenant, int listener);

#endif
