/* Waits for the refund of processes that have ended: the driver releases what they had some time after their end. */
#ifndef NVC_GUARD_REFUND_H
#define NVC_GUARD_REFUND_H

#include <stdbool.h>

struct tenant;

/* Whether what a process had may be about to come back. */
bool refund_is_expected (const struct tenant *tenant);
/* Waits for that, two seconds at the most; where the current call needs memory, until there is enough, and two seconds more after each process that
 * is refunded, ten at the most. */
void refund_await (struct tenant *tenant);

#endif
