/* What a FREE, or the last close of a file, would give back: pieces whose last handle goes with it. */
#include "rm_bench.h"
#include "tap.h"

#define HANDLE 0xd0d00000u
#define MAP_REQUEST NV_REQUEST (NV_ESC_RM_MAP_MEMORY, sizeof (nv_ioctl_nvos33_parameters_with_fd))

static struct rm_piece found[16];

static size_t below (struct bench *b, uint32_t client, uint32_t handle)
{
    return rm_pieces (b->fake->rm, client, handle, found, 16);
}

static struct rm_call call_of (uint32_t request, void *head, uint32_t head_size)
{
    return (struct rm_call) { .node = RM_NODE_CONTROL, .file = FILE_A, .request = request, .head = head, .head_size = head_size };
}

/* By the size it is bounded what the call counts (guard/fair.c). The driver writes the size that it took. */
static void allocations (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    uint32_t client = fake_client (fake, FILE_A), device = fake_device (fake, FILE_A, client, 0);
    struct fake_memory_params memory = { .common.size = 1 * MIB };
    NVOS64_PARAMETERS head = { .hRoot = client, .hObjectParent = device, .hObjectNew = HANDLE, .hClass = NV01_MEMORY_LOCAL_USER };
    struct rm_call call = call_of (ALLOC_REQUEST, &head, sizeof (head));
    uint64_t bytes = 0;

    fake->limit[0] = 100 * MIB;
    fake_subdevice (fake, FILE_A, client, device);
    head.pAllocParms = (NvP64) (uintptr_t) &memory;
    call.params = &memory, call.params_size = sizeof (memory);
    tap_ok (rm_begin (fake->rm, &call) == RM_PERFORM, "a piece is allocated");
    memory.common.size = 2 * MIB;
    tap_ok (rm_piece_call_of (fake->rm, &call, &bytes) == RM_ALLOCATES_PIECE && bytes == 2 * MIB,
            "by one call, of the size that the driver says");
    call.params_size = 8;
    tap_ok (rm_piece_call_of (fake->rm, &call, &bytes) == RM_NO_PIECE, "params that have no size say none");
    call.params_size = sizeof (memory);
    rm_end (fake->rm, &call, -1);

    head.hClass = NV01_MEMORY_SYSTEM;
    call = call_of (ALLOC_REQUEST, &head, sizeof (head));
    call.params = &memory, call.params_size = sizeof (memory);
    tap_ok (rm_begin (fake->rm, &call) == RM_PERFORM && rm_piece_call_of (fake->rm, &call, &bytes) == RM_NO_PIECE,
            "memory of the host is no piece");
    rm_end (fake->rm, &call, -1);
    tap_ok (fake_close (fake), "nothing is left");
}

static enum rm_piece_call freeing (struct fake *fake, uint32_t client, uint32_t handle, uint64_t *bytes)
{
    NVOS00_PARAMETERS head = { .hRoot = client, .hObjectOld = handle };
    struct rm_call call = call_of (FREE_REQUEST, &head, sizeof (head));
    enum rm_piece_call kind;

    tap_ok (rm_begin (fake->rm, &call) == RM_PERFORM, "a FREE is made");
    kind = rm_piece_call_of (fake->rm, &call, bytes);
    rm_end (fake->rm, &call, -1);
    return kind;
}

static void freeings (void)
{
    struct fake *fake = fake_open (VERSION, RM_POSTURE_GUARD);
    uint32_t client = fake_client (fake, FILE_A), device = fake_device (fake, FILE_A, client, 0);
    uint32_t piece = 0, below_it = 0;
    uint64_t size = 4 * MIB, bytes = 0;
    nv_ioctl_nvos33_parameters_with_fd mapped = { 0 };
    struct rm_call mapping;

    fake->limit[0] = 100 * MIB;
    fake_subdevice (fake, FILE_A, client, device);
    fake_memory (fake, FILE_A, client, device, &piece, &size);
    tap_ok (freeing (fake, client, piece, &bytes) == RM_FREES_PIECE && bytes == 4 * MIB, "that of a piece, with its size");
    tap_ok (freeing (fake, client, device, &bytes) == RM_NO_PIECE, "that of a device frees more than a piece");
    mapped.params = (NVOS33_PARAMETERS) { .hClient = client, .hDevice = device, .hMemory = piece };
    mapping = call_of (MAP_REQUEST, &mapped, sizeof (mapped));
    tap_ok (rm_begin (fake->rm, &mapping) == RM_CONTINUE && rm_piece_call_of (fake->rm, &mapping, &bytes) == RM_NO_PIECE,
            "a call that maps a piece does not free it, though it names it in the same place");
    fake_alloc (fake, FILE_A, client, piece, &below_it, NV01_EVENT_OS_EVENT, (uint8_t[24]) { 0 }, 24);
    tap_ok (below_it != 0 && freeing (fake, client, piece, &bytes) == RM_NO_PIECE, "what is below a piece goes with it");
    tap_ok (fake_close (fake), "nothing is left");
}

int main (void)
{
    struct bench b = bench (0);
    uint32_t first, second, third, copy = 0, other = fake_client (b.fake, FILE_A), away = fake_client (b.fake, FILE_B);
    uint32_t device = fake_device (b.fake, FILE_A, other, 0), apart = fake_device (b.fake, FILE_B, away, 0), far = 0;
    uint64_t bytes = 3 * MIB;

    fake_subdevice (b.fake, FILE_A, other, device);
    take (&b, 5 * MIB, &first);
    take (&b, 7 * MIB, &second);
    third = 0;
    fake_memory (b.fake, FILE_A, b.client, b.subdevice, &third, &bytes);

    tap_ok (below (&b, b.client, first) == 1 && found[0].bytes == 5 * MIB && found[0].handle == first &&
                found[0].client == b.client && found[0].gpu == 0 && !found[0].is_below_subdevice,
            "a piece goes with its handle");
    tap_ok (below (&b, b.client, third) == 1 && found[0].is_below_subdevice, "one below a subdevice is said to be");
    tap_ok (below (&b, b.client, 0x12345) == 0 && below (&b, 0x12345, first) == 0, "nothing goes with what is not there");
    tap_ok (below (&b, b.client, b.device) == 3 && below (&b, b.client, b.client) == 3, "all go with what they are below");
    tap_ok (rm_pieces (b.fake->rm, b.client, b.device, found, 1) == 3, "how many is said also where there is no room");

    fake_dup (b.fake, FILE_A, b.client, b.device, &copy, b.client, first);
    tap_ok (below (&b, b.client, first) == 0 && below (&b, b.client, copy) == 0, "another handle keeps a piece");
    tap_ok (below (&b, b.client, b.device) == 3, "unless it goes too");
    fake_dup (b.fake, FILE_A, other, device, &(uint32_t) { 0 }, b.client, second);
    tap_ok (below (&b, b.client, b.client) == 2, "another client's handle keeps a piece");
    tap_ok (rm_file_pieces (b.fake->rm, FILE_A, found, 16) == 3, "unless its file goes as a whole");
    fake_subdevice (b.fake, FILE_B, away, apart);
    fake_dup (b.fake, FILE_B, away, apart, &far, b.client, first);
    tap_ok (rm_file_pieces (b.fake->rm, FILE_A, found, 16) == 2, "another file's handle keeps a piece");
    tap_ok (rm_file_pieces (b.fake->rm, FILE_B, found, 16) == 0 && rm_file_pieces (b.fake->rm, 99, found, 16) == 0,
            "a file that only has copies gives nothing back, nor one that is not known");
    rm_file_ended (b.fake->rm, FILE_B);
    tap_ok (below (&b, b.client, b.client) == 2 && rm_file_pieces (b.fake->rm, FILE_A, found, 16) == 3,
            "unless its process has ended: what that had is about to go");
    tap_ok (below (&b, away, far) == 0, "there the others keep it still");
    rm_file_ended (b.fake->rm, FILE_A);
    tap_ok (below (&b, away, far) == 1 && below (&b, away, apart) == 1 && found[0].handle == far,
            "of two ended ones each is the last, by all that the other has");
    fake_close_file (b.fake, FILE_A);
    tap_ok (rm_file_pieces (b.fake->rm, FILE_B, found, 16) == 1 && found[0].handle == far && found[0].bytes == 5 * MIB,
            "the last one does");
    tap_ok (fake_close (b.fake), "asking changes nothing");
    allocations ();
    freeings ();
    return tap_done ();
}
