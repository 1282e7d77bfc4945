/* The address space in which a tenant's channels compute. */
#ifndef NVC_RM_SPACE_H
#define NVC_RM_SPACE_H

#include <stdbool.h>
#include <stdint.h>

struct object;
struct rm;
struct rm_call;

/* call: an ALLOC, with its class. A device: whether it names no other tenant's client; whether its default address space is its own, so that the guard
 * makes it. Another object, below `parent` (NULL: not known): whether it may be made. look remembers by what it is in the tenant's own; made: whether it
 * still was when it was made. */
bool space_may_be_shared (const struct rm *rm, const struct rm_call *call);
bool space_is_private (const struct rm_call *call);
bool space_look (const struct rm *rm, struct rm_call *call, const struct object *parent);
/* The same of a range of VID_HEAP_CONTROL, which names this handle, or 0. */
bool space_look_range (const struct rm *rm, struct rm_call *call, uint32_t client, uint32_t named, const struct object *parent);
bool space_made (const struct rm *rm, const struct rm_call *call, struct object *object);
bool space_is_own (const struct rm *rm, const struct object *object);
/* It is about to be freed, with all below it: from now on nothing is in the tenant's own by it. */
void space_leaves (struct object *object);
/* A duplicate of this object; NULL: of one that is gone. */
void space_duplicated (const struct rm *rm, const struct rm_call *call, struct object *object, const struct object *source);

#endif
