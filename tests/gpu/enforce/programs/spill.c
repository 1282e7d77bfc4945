/*
 * Memory of a share with oversubscribe=on: how much it says there is, whether a piece is managed, whether it can go to the host and come back
 * with what it held, and where the limit is. usage: spill BYTES. Says "here", "there" and "back" and waits for a line while the piece lies in
 * the GPU's memory, in the host's, and in the GPU's again; then takes pieces until it is refused.
 */
#include "check.h"

#define PATTERN 0x5a
#define PIECES 64

static void move (CUdeviceptr piece, size_t bytes, CUdevice device)
{
#if CUDA_VERSION >= 13000
    CUmemLocation location = { .type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                               .id = device == CU_DEVICE_CPU ? 0 : device };

    MUST (cuMemPrefetchAsync (piece, bytes, location, 0, NULL));
#else
    MUST (cuMemPrefetchAsync (piece, bytes, device, NULL));
#endif
    MUST (cuCtxSynchronize ());
}

static unsigned wrong_bytes (CUdeviceptr piece, size_t bytes)
{
    static unsigned char part[1 << 16];
    unsigned wrong = 0;

    for (size_t at = 0; at < bytes; at += bytes / 16) {
        MUST (cuMemcpyDtoH (part, piece + at, sizeof (part)));
        for (size_t i = 0; i < sizeof (part); i++)
            wrong += part[i] != PATTERN;
    }
    return wrong;
}

int main (int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoull (argv[1], NULL, 10) : 0;
    CUdeviceptr piece, more[PIECES];
    CUresult result = CUDA_SUCCESS;
    unsigned count = 0, managed = 0;
    CUdevice device;

    if (bytes == 0)
        return 2;
    device = begin_cuda ();
    say ("total", memory_total ());
    MUST (cuMemAlloc (&piece, bytes));
    MUST (cuPointerGetAttribute (&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, piece));
    say ("managed", managed);
    MUST (cuMemsetD8 (piece, PATTERN, bytes));
    MUST (cuCtxSynchronize ());
    wait_for_line ("here");
    move (piece, bytes, CU_DEVICE_CPU);
    wait_for_line ("there");
    say ("wrong_there", wrong_bytes (piece, bytes));
    move (piece, bytes, device);
    wait_for_line ("back");
    say ("wrong_back", wrong_bytes (piece, bytes));
    while (count < PIECES && (result = cuMemAlloc (&more[count], bytes)) == CUDA_SUCCESS)
        count++;
    say ("pieces", count);
    say ("refused", (unsigned long long) result);
    while (count > 0)
        MUST (cuMemFree (more[--count]));
    MUST (cuMemFree (piece));
    wait_for_line ("end");
    return 0;
}
