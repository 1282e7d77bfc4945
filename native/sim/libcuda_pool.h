/* Pools of device memory, for the asynchronous allocator and for graphs. Implemented in libcuda_pool.c. */
#ifndef NVC_SIM_LIBCUDA_POOL_H
#define NVC_SIM_LIBCUDA_POOL_H

#include "libcuda.h"

#define POOL_CHUNK (32 * MEBIBYTE) /* a pool grows by this */

/* A range of a pool's address space. backed: it has memory. holders: graphs that refer to it. */
struct pooled {
    struct cuda_entry entry;
    struct CUmemPoolHandle_st *pool;
    struct pooled *next; /* by address */
    uint64_t length;     /* size, rounded up */
    unsigned int holders;
    bool backed;
};

struct pool_chunk {
    struct cuda_memory memory;
    unsigned int users;
};

struct CUmemPoolHandle_st {
    struct cuda_entry entry;
    struct cuda_device *device;
    struct pooled *places;
    struct pool_chunk *chunks;
    size_t chunk_count; /* of the address space */
    uint64_t address;   /* 0: none reserved yet */
    uint64_t threshold, maximum;
    uint64_t reserved, reserved_high, used, used_high;
    uint64_t reuse[4]; /* the attributes 1 to 3, stored without effect */
};

CUresult cuda_pool_create (struct cuda_device *device, CUmemoryPool *pool);
void cuda_pool_destroy (CUmemoryPool pool);
/* Address space only. */
CUresult cuda_pool_place (CUmemoryPool pool, CUcontext context, size_t size, struct pooled **place);
void cuda_pool_unplace (struct pooled *place);
/* Backs a range with memory: all of it or nothing. */
CUresult cuda_pool_back (struct pooled *place);
void cuda_pool_unback (struct pooled *place);
/* Frees unused chunks until at most `keep` bytes are reserved. */
void cuda_pool_trim (CUmemoryPool pool, uint64_t keep);
/* Frees an address that was passed to cuMemFreeAsync and the like. */
CUresult cuda_pool_free (CUdeviceptr pointer);

#endif
