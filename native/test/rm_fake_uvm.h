/* A UVM that knows pages and what each leads to, and nothing else, beside the fake driver of rm_fake.h. */
#ifndef NVC_TEST_RM_FAKE_UVM_H
#define NVC_TEST_RM_FAKE_UVM_H

#include "rm_fake.h"
#include "rm/state.h"
#include "rm/uvm_ioctl.h"

#include <string.h>

#define UVM_FILE 11 /* and the next one */
#define FILES 2
#define PAGES 64u
#define PAGE ((uint64_t) 64 << 10)
#define BASE ((uint64_t) 0x7f0000000000)

static struct fake *fake;
/* Memory that each page of a GPU's leads to, -1: none. Which range it is in, 0: none. */
static int pages[FILES][FAKE_GPUS][PAGES];
static unsigned ranges[FILES][PAGES], next_range;

static inline void begin (struct fake *new)
{
    fake = new;
    memset (pages, 0xff, sizeof (pages));
    memset (ranges, 0, sizeof (ranges));
}

static inline void set_page (int *page, int memory)
{
    if (memory >= 0)
        fake->memories[memory].references++;
    if (*page >= 0)
        fake->memories[*page].references--;
    *page = memory;
}

static inline void set_pages (unsigned file, int gpu, unsigned first, unsigned count, int memory)
{
    for (unsigned page = first; page < first + count; page++)
        set_page (&pages[file][gpu][page], memory);
}

static inline bool in_one_range (unsigned file, unsigned first, unsigned count)
{
    for (unsigned page = first; page < first + count; page++)
        if (ranges[file][page] == 0 || ranges[file][page] != ranges[file][first])
            return false;
    return count != 0;
}

/* A call and its halves. */
struct made {
    struct rm_call call;
    uint8_t head[9264];
};

static inline bool has_lengths (void) { return fake->rm->abi->branch < 590; }

static inline void start (struct made *made, uint32_t number, unsigned file, unsigned first, unsigned count)
{
    UVM_CREATE_EXTERNAL_RANGE_PARAMS *range = (void *) made->head;

    memset (made, 0, sizeof (*made));
    made->call = (struct rm_call) { .node = RM_NODE_UVM, .file = UVM_FILE + file, .request = number, .head = made->head };
    made->call.head_size = rm_head_size (fake->rm->abi, RM_NODE_UVM, number);
    range->base = BASE + first * PAGE;
    if (number != UVM_FREE || has_lengths ())
        range->length = count * PAGE;
}

/* The model's work has been done, with this outcome. */
static inline void finish (struct made *made, bool is_good)
{
    const struct rm_uvm *row = rm_abi_uvm (fake->rm->abi, made->call.request);

    if (row == NULL)
        return; /* rm has no use for it */
    if (rm_begin (fake->rm, &made->call) != RM_CONTINUE)
        return;
    set32 (made->head, row->status, is_good ? 0 : NV_ERR_INVALID_ADDRESS);
    rm_end (fake->rm, &made->call, 0);
}

static inline bool create (unsigned file, unsigned first, unsigned count)
{
    struct made made;
    bool is_good = count != 0;

    for (unsigned page = first; page < first + count; page++)
        is_good = is_good && ranges[file][page] == 0;
    for (unsigned page = first; is_good && page < first + count; page++)
        ranges[file][page] = next_range + 1;
    next_range += is_good;
    start (&made, UVM_CREATE_EXTERNAL_RANGE, file, first, count);
    finish (&made, is_good);
    return is_good;
}

static inline void prepare_map (struct made *made, unsigned file, uint32_t gpus, unsigned first, unsigned count, uint32_t client,
                                uint32_t handle)
{
    uvm_map_external_allocation_begin *head = (void *) made->head;
    uvm_map_external_allocation_end *tail;
    uint32_t at = 0;

    start (made, UVM_MAP_EXTERNAL_ALLOCATION, file, first, count);
    tail = (void *) (made->head + made->call.head_size - sizeof (*tail));
    for (int gpu = 0; gpu < FAKE_GPUS; gpu++)
        if ((gpus >> gpu & 1) != 0)
            memcpy (head->perGpuAttributes[at++].gpuUuid.uuid, fake_uuid[gpu], sizeof (fake_uuid[gpu]));
    tail->gpuAttributesCount = at;
    tail->hClient = client;
    tail->hMemory = handle;
}

static inline bool map (unsigned file, uint32_t gpus, unsigned first, unsigned count, uint32_t client, uint32_t handle)
{
    const struct fake_object *object = fake_find (fake, client, handle);
    bool is_good = in_one_range (file, first, count) && object != NULL && object->memory >= 0 && gpus != 0;
    struct made made;

    for (int gpu = 0; is_good && gpu < FAKE_GPUS; gpu++)
        if ((gpus >> gpu & 1) != 0)
            set_pages (file, gpu, first, count, object->memory);
    prepare_map (&made, file, gpus, first, count, client, handle);
    finish (&made, is_good);
    return is_good;
}

/* UNMAP_EXTERNAL or MAP_EXTERNAL_SPARSE. */
static inline void unmap (uint32_t number, unsigned file, int gpu, unsigned first, unsigned count)
{
    struct made made;
    bool is_good = in_one_range (file, first, count);

    if (is_good)
        set_pages (file, gpu, first, count, -1);
    start (&made, number, file, first, count);
    memcpy (made.head + offsetof (UVM_UNMAP_EXTERNAL_PARAMS, gpuUuid), fake_uuid[gpu], sizeof (fake_uuid[gpu]));
    finish (&made, is_good);
}

static inline void release (unsigned file, unsigned first)
{
    unsigned count = 0, range = ranges[file][first];
    bool is_good = range != 0 && (first == 0 || ranges[file][first - 1] != range);
    struct made made;

    while (is_good && first + count < PAGES && ranges[file][first + count] == range)
        ranges[file][first + count++] = 0;
    for (int gpu = 0; gpu < FAKE_GPUS; gpu++)
        set_pages (file, gpu, first, count, -1);
    start (&made, UVM_FREE, file, first, count);
    finish (&made, is_good);
}

static inline void unregister (uint32_t number, unsigned file, int gpu)
{
    struct made made;

    set_pages (file, gpu, 0, PAGES, -1);
    start (&made, number, file, 0, 0);
    memcpy (made.head, fake_uuid[gpu], 16);
    finish (&made, true);
}

static inline void close_uvm (unsigned file)
{
    for (int gpu = 0; gpu < FAKE_GPUS; gpu++)
        set_pages (file, gpu, 0, PAGES, -1);
    memset (ranges[file], 0, sizeof (ranges[file]));
    rm_close_file (fake->rm, UVM_FILE + file);
}

#endif
