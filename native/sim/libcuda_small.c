/* Allocations below 1 MiB: pieces of 512 bytes and more, out of blocks of 2 MiB. Runs in the program's process, on the
 * calling thread, under the library's lock. */
#include "libcuda.h"

#include <stdlib.h>
#include <string.h>

#define PIECE 512u
#define PIECES ((unsigned int) (CUDA_BLOCK / PIECE))

struct cuda_block {
    struct cuda_block *next;
    struct cuda_memory memory;
    uint64_t address;
    unsigned int used, from; /* allocated pieces; where a search begins */
    bool taken[PIECES];
};

struct small {
    struct cuda_entry entry;
    struct cuda_block *block;
    unsigned int first, count;
};

/* The first run of free pieces in [start, end), PIECES when there is none. */
static unsigned int find_run (const struct cuda_block *block, unsigned int start, unsigned int end, unsigned int count)
{
    unsigned int run = 0;

    for (unsigned int i = start; i < end; i++) {
        run = block->taken[i] ? 0 : run + 1;
        if (run == count)
            return i + 1 - count;
    }
    return PIECES;
}

static unsigned int take_run (struct cuda_block *block, unsigned int count)
{
    unsigned int first = PIECES;

    if (PIECES - block->used < count)
        return PIECES;
    first = find_run (block, block->from, PIECES, count);
    if (first == PIECES)
        first = find_run (block, 0, PIECES, count);
    if (first == PIECES)
        return PIECES;
    memset (block->taken + first, true, count);
    block->used += count;
    block->from = first + count;
    return first;
}

static CUresult add_block (CUcontext context)
{
    struct cuda_block *block = calloc (1, sizeof (*block));

    if (block == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuda_memory_allocate (context->device, CUDA_BLOCK, ATTRIBUTES_BLOCK, &block->memory);
    if (result == CUDA_SUCCESS) {
        block->address = cuda_reserve (CUDA_BLOCK, CUDA_BLOCK);
        result = block->address != 0 ? cuda_memory_place (context->device, &block->memory, block->address, CUDA_BLOCK)
                                     : CUDA_ERROR_OUT_OF_MEMORY;
        if (result != CUDA_SUCCESS) {
            cuda_memory_free (context->device, &block->memory);
            if (block->address != 0)
                cuda_unreserve (block->address, CUDA_BLOCK);
        }
    }
    if (result != CUDA_SUCCESS) {
        free (block);
        return result;
    }
    block->next = context->blocks;
    context->blocks = block;
    return CUDA_SUCCESS;
}

CUresult cuda_small_allocate (CUcontext context, CUdeviceptr *pointer, size_t size)
{
    struct small *small = calloc (1, sizeof (*small));
    unsigned int count = (unsigned int) ((size + PIECE - 1) / PIECE), first = PIECES;
    struct cuda_block *block;
    CUresult result;

    if (small == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (block = context->blocks; block != NULL; block = block->next) {
        first = take_run (block, count);
        if (first != PIECES)
            break;
    }
    if (block == NULL) {
        result = add_block (context);
        if (result != CUDA_SUCCESS) {
            free (small);
            return result;
        }
        block = context->blocks;
        first = take_run (block, count);
    }
    small->block = block;
    small->first = first;
    small->count = count;
    *pointer = block->address + (uint64_t) first * PIECE;
    if (!cuda_add (&small->entry, KIND_SMALL, context, *pointer, size)) {
        memset (block->taken + first, false, count);
        block->used -= count;
        free (small);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult drop_block (CUcontext context, struct cuda_block *block)
{
    struct cuda_block **place = &context->blocks;

    while (*place != block)
        place = &(*place)->next;
    *place = block->next;
    CUresult result = cuda_memory_free (context->device, &block->memory);
    cuda_unreserve (block->address, CUDA_BLOCK);
    free (block);
    return result;
}

void cuda_small_evict (CUcontext context)
{
    for (struct cuda_block *block = context->blocks; block != NULL; block = block->next)
        cuda_memory_free (context->device, &block->memory);
}

CUresult cuda_small_return (CUcontext context)
{
    CUresult result = CUDA_SUCCESS;

    for (struct cuda_block *block = context->blocks; block != NULL && result == CUDA_SUCCESS; block = block->next) {
        if (block->memory.object != 0)
            continue;
        result = cuda_memory_allocate (context->device, CUDA_BLOCK, ATTRIBUTES_BLOCK, &block->memory);
        if (result == CUDA_SUCCESS)
            result = cuda_memory_place (context->device, &block->memory, block->address, CUDA_BLOCK);
    }
    return result;
}

CUresult cuda_small_free (struct cuda_entry *entry)
{
    CUresult result = CUDA_SUCCESS;
    struct small *small = (struct small *) entry;
    struct cuda_block *block = small->block;

    cuda_remove (entry);
    memset (block->taken + small->first, false, small->count);
    block->used -= small->count;
    if (block->from > small->first)
        block->from = small->first;
    /* The last block stays, so that repeated allocation and free of one piece makes no calls of the driver. */
    if (block->used == 0 && entry->context->blocks->next != NULL)
        result = drop_block (entry->context, block);
    free (small);
    return result;
}

bool cuda_small_behind (struct cuda_entry *entry, struct cuda_memory *memory, uint64_t *offset)
{
    const struct cuda_block *block = ((struct small *) entry)->block;

    *memory = block->memory;
    *offset = entry->start - block->address;
    return true;
}

void cuda_small_forget (CUcontext context)
{
    while (context->blocks != NULL)
        drop_block (context, context->blocks);
}
