/* Page tables that the driver reserves for a length which a call names. */
#ifndef NVC_RM_PAGE_TABLES_H
#define NVC_RM_PAGE_TABLES_H

#include "state.h"

/* A mapping: whether it is no longer than the piece of memory; of what the ledger has no size of, than any program's. */
bool tables_may_map (const struct rm *rm, const NVOS46_PARAMETERS *head);
/* A range of addresses, on the GPU that call->own.gpu says: whether it may be made. What it would keep is taken from the quota. */
bool tables_reserve (struct rm *rm, struct rm_call *call, uint32_t flags, uint64_t bytes);
/* It was made, with so many bytes. object NULL: there is no record of it, and what was taken stays so. */
void tables_made (struct rm *rm, const struct rm_call *call, struct object *object, uint64_t bytes);
/* A duplicate of it, which keeps the same tables: whether the quota has room for them once more. */
bool tables_duplicate (struct rm *rm, struct rm_call *call, const struct object *source);

#endif
