/* Lookup of callers' handles and addresses: balanced trees of ranges. Runs in the program's process, on the calling
 * thread, under the library's lock. */
#include "libcuda_pool.h"

#include <search.h>
#include <stdlib.h>

static void *handles, *addresses, *reservations; /* mappings in a reservation are in `addresses` */

/* Ranges that overlap are equal: a search for one byte finds the range around it. */
static int compare (const void *left, const void *right)
{
    const struct cuda_entry *one = left, *other = right;

    if (one->start + one->size <= other->start)
        return -1;
    return one->start >= other->start + other->size;
}

static void **tree_of (enum cuda_kind kind)
{
    if (kind == KIND_RESERVED)
        return &reservations;
    return kind >= KIND_MEMORY ? &addresses : &handles;
}

bool cuda_add (struct cuda_entry *entry, enum cuda_kind kind, CUcontext context, uint64_t start, uint64_t size)
{
    *entry = (struct cuda_entry) { .start = start, .size = size, .kind = kind, .context = context };
    struct cuda_entry **place = tsearch (entry, tree_of (kind), compare);
    return place != NULL && *place == entry;
}

bool cuda_add_handle (struct cuda_entry *entry, enum cuda_kind kind, CUcontext context)
{
    return cuda_add (entry, kind, context, (uintptr_t) entry, 1);
}

void cuda_remove (struct cuda_entry *entry) { tdelete (entry, tree_of (entry->kind), compare); }

void *cuda_find (const void *handle, enum cuda_kind kind)
{
    const struct cuda_entry key = { .start = (uintptr_t) handle, .size = 1 };
    struct cuda_entry **place = tfind (&key, &handles, compare);

    return place != NULL && (*place)->kind == kind ? *place : NULL;
}

struct cuda_entry *cuda_find_overlap (uint64_t address, uint64_t size)
{
    const struct cuda_entry key = { .start = address, .size = size };
    struct cuda_entry **place = tfind (&key, &addresses, compare);

    return place != NULL ? *place : NULL;
}

struct cuda_entry *cuda_find_address (uint64_t address) { return cuda_find_overlap (address, 1); }

struct cuda_entry *cuda_find_reserved (uint64_t address, uint64_t size)
{
    const struct cuda_entry key = { .start = address, .size = 1 };
    struct cuda_entry **place = tfind (&key, &reservations, compare);

    return place != NULL && size <= (*place)->start + (*place)->size - address ? *place : NULL;
}

struct search {
    CUcontext context;
    struct cuda_entry *found;
};

static void look (const void *node, VISIT visit, void *closure)
{
    struct search *search = closure;
    struct cuda_entry *entry = *(struct cuda_entry *const *) node;

    if ((visit == preorder || visit == leaf) && entry->context == search->context)
        search->found = entry;
}

struct cuda_entry *cuda_find_of_context (CUcontext context)
{
    struct search search = { .context = context };

    twalk_r (addresses, look, &search);
    if (search.found == NULL)
        twalk_r (handles, look, &search);
    return search.found;
}

struct walk {
    CUcontext after, found;
    CUresult (*act) (struct cuda_entry *entry);
    CUresult result;
    bool refused;
};

static void look_for_context (const void *node, VISIT visit, void *closure)
{
    struct walk *walk = closure;
    struct cuda_entry *entry = *(struct cuda_entry *const *) node;

    if ((visit != postorder && visit != leaf) || entry->kind != KIND_CONTEXT || walk->found != NULL)
        return;
    if (walk->after == NULL || entry->start > walk->after->entry.start)
        walk->found = (CUcontext) entry;
}

CUcontext cuda_next_context (CUcontext context)
{
    struct walk walk = { .after = context };

    twalk_r (handles, look_for_context, &walk);
    return walk.found;
}

static void act_on_memory (const void *node, VISIT visit, void *closure)
{
    struct walk *walk = closure;
    struct cuda_entry *entry = *(struct cuda_entry *const *) node;

    if ((visit == postorder || visit == leaf) && entry->kind == KIND_MEMORY && walk->result == CUDA_SUCCESS)
        walk->result = walk->act (entry);
}

CUresult cuda_each_memory (CUresult (*act) (struct cuda_entry *entry))
{
    struct walk walk = { .act = act };

    twalk_r (addresses, act_on_memory, &walk);
    return walk.result;
}

static void look_for_refused (const void *node, VISIT visit, void *closure)
{
    struct walk *walk = closure;
    const struct cuda_entry *entry = *(struct cuda_entry *const *) node;

    if (visit != postorder && visit != leaf)
        return;
    switch (entry->kind) {
    case KIND_ARRAY:
    case KIND_MIPMAP:
    case KIND_PHYSICAL:
    case KIND_MANAGED:
    case KIND_MAPPED:
    case KIND_POOLED:
    case KIND_IMPORTED:
        walk->refused = true;
        break;
    case KIND_POOL: /* unused memory that it keeps */
        walk->refused |= ((const struct CUmemPoolHandle_st *) entry)->reserved != 0;
        break;
    default:
        break;
    }
}

bool cuda_all_can_go (void)
{
    struct walk walk = { .refused = false };

    twalk_r (addresses, look_for_refused, &walk);
    twalk_r (handles, look_for_refused, &walk);
    return !walk.refused;
}
