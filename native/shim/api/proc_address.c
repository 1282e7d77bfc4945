/*
 * cuGetProcAddress: the driver is called first, with the caller's version and flags. Its result is then replaced by the
 * wrapper of exactly that variant, which is recognised by its address. All else about the result stays the driver's.
 *
 * Runs in every process that preloads one of the two libraries, on the thread that calls the driver's function.
 */
#include "next.h"

#include <string.h>

static CUresult ask (const char *symbol, void **found, int version, uint64_t flags)
{
    CUdriverProcAddressQueryResult status;
    *found = NULL;
    if (next_exists (ROW_cuGetProcAddress_v2))
        return NEXT (cuGetProcAddress_v2) (symbol, found, version, flags, &status);
    return NEXT (cuGetProcAddress) (symbol, found, version, flags);
}

/* A driver may return an address that no exported name has: it is compared with the result for the row's version and
 * flags. */
static bool is_variant (enum row row, void *address)
{
    void *found;
    if (next_known (row) == address)
        return true;
    return ask (row_facts[row].base, &found, row_facts[row].version, row_facts[row].stream) == CUDA_SUCCESS && found == address &&
           next_exists (row);
}

void proc_address_replace (const char *symbol, void **address)
{
    if (symbol == NULL || address == NULL || *address == NULL)
        return;
    for (enum row row = 0; row < WRAPPED; row++) {
        bool named = row_facts[row].library == LIBRARY_CUDA && strcmp (row_facts[row].base, symbol) == 0;
        if (named && is_variant (row, *address)) {
            *address = row_facts[row].answer;
            return;
        }
    }
}

CUresult ANSWER (cuGetProcAddress) (const char *symbol, void **function, int version, uint64_t flags)
{
    CUresult result = NEXT (cuGetProcAddress) (symbol, function, version, flags);
    if (result == CUDA_SUCCESS)
        proc_address_replace (symbol, function);
    return result;
}

CUresult ANSWER (cuGetProcAddress_v2) (const char *symbol, void **function, int version, uint64_t flags,
                                       CUdriverProcAddressQueryResult *status)
{
    CUresult result = NEXT (cuGetProcAddress_v2) (symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS)
        proc_address_replace (symbol, function);
    return result;
}
