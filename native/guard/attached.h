/* Processes that are scheduled without being guarded: their channels,
 * stopped and started through copies of descriptors. */
#ifndef NVC_GUARD_ATTACHED_H
#define NVC_GUARD_ATTACHED_H

#include "guard.h"

#include <stdbool.h>

struct attached_list;

struct attached_list *attached_create (struct guard *guard);
/* Starts everything that is stopped. */
void attached_destroy (struct attached_list *list);
int attached_add (struct attached_list *list, int pidfd, const struct limits_node *node, const struct guard_channel *channels,
                  uint32_t count);
/* How many calls it took. */
int attached_freeze (struct attached_list *list, bool frozen);
/* Closes what is held of processes that have ended. */
int attached_status (struct attached_list *list, struct guard_attached *status);

#endif
