/* Small modules of native/shim: the filter of requests, the tables of descriptors, the allocator. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rm/abi.h"
#include "shim/calls.h"
#include "shim/files.h"
#include "shim/memory.h"
#include "tap.h"

static void test_requests (void)
{
    static const char *const versions[] = { "535.183.01", "550.54.14", "570.86.15", "580.105.08",
                                            "580.159.04", "590.44.01", "595.45.04" };
    unsigned known = 0, interesting = 0, missed = 0;

    for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++) {
        const struct rm_abi *abi = rm_abi_find (versions[i]);

        if (!abi)
            continue;
        known++;
        for (int node = RM_NODE_CONTROL; node <= RM_NODE_UVM; node++)
            for (uint32_t low = 0; low < 256; low++)
                for (uint32_t size = 0; size < 4096; size++) {
                    uint32_t request = node == RM_NODE_UVM && size == 0 ? low : 3u << 30 | size << 16 | 'F' << 8 | low;

                    const struct rm_escape *escape = node == RM_NODE_UVM ? NULL : rm_abi_escape (abi, low);

                    /* The preloaded library passes what only the guard forbids or bounds. */
                    if (escape &&
                        (escape->kind == ESCAPE_FORBIDDEN || escape->kind == ESCAPE_IDLE || escape->kind == ESCAPE_MAPPING))
                        continue;
                    if (!rm_is_interesting (abi, (enum rm_node) node, request) || !rm_head_size (abi, (enum rm_node) node, request))
                        continue;
                    interesting++;
                    missed += !call_may_matter (request) || !call_size_may_matter (request);
                }
    }
    printf ("# %u of %u versions known, %u requests\n", known, (unsigned) (sizeof versions / sizeof *versions), interesting);
    tap_ok (known >= 4 && interesting > 20 && missed == 0, "every request that rm handles passes the filter");
    tap_ok (!call_may_matter (0x5401) && !call_may_matter (0x541b) && !call_may_matter (0x5413) && !call_may_matter (0x8912),
            "the usual ones on terminals and sockets are not");
    tap_ok (!call_size_may_matter (0x802c542a) && !call_size_may_matter (0x8927), "nor those that share a low byte with an escape");
}

/* More than the initial tables hold, and larger descriptors. */
static void test_many (struct files *files)
{
    enum { MANY = 200 };
    uint64_t names[MANY], gone;
    int descriptors[MANY];
    bool known = true, ended = true;

    for (int i = 0; i < MANY; i++) {
        int low = open ("/dev/null", O_RDWR);

        descriptors[i] = fcntl (low, F_DUPFD, 150);
        close (low);
        names[i] = files_open (files, descriptors[i], RM_NODE_GPU, &gone);
    }
    for (int i = 0; i < MANY; i++)
        known &= names[i] && files_may_track (files, descriptors[i]) && files_descriptor (files, names[i]) == descriptors[i] &&
                 files_open (files, descriptors[i], RM_NODE_GPU, &gone) == names[i];
    tap_ok (known && descriptors[MANY - 1] >= (int) FILES_INITIAL_DESCRIPTORS && MANY > FILES_INITIAL,
            "more open files than most programs have are tracked by their ids");
    for (int i = 0; i < MANY; i++) {
        ended &= files_close (files, descriptors[i]) == names[i] && !files_may_track (files, descriptors[i]);
        close (descriptors[i]);
    }
    tap_ok (ended, "and each ends by itself");
}

static void test_files (void)
{
    struct files files = { 0 };
    struct files_initial room = { 0 };
    uint64_t gone, first, second;
    int one = open ("/dev/null", O_RDWR), other = open ("/dev/null", O_RDWR), copy;

    tap_ok (!files_may_track (&files, one), "nothing is tracked before a driver node is opened");
    files_begin (&files, &room);
    tap_ok (!files_may_track (&files, one) && !files_may_track (&files, -1) && !files_may_track (&files, 1 << 30),
            "nor of descriptors that cannot be");
    first = files_open (&files, one, RM_NODE_CONTROL, &gone);
    second = files_open (&files, other, RM_NODE_CONTROL, &gone);
    tap_ok (first && second && first != second && !gone, "two open files of a node are two");
    tap_ok (files_open (&files, one, RM_NODE_CONTROL, &gone) == first, "a file keeps its id");
    copy = dup (one);
    files_duplicate (&files, one, copy);
    tap_ok (files_close (&files, one) == 0 && files_descriptor (&files, first) == copy, "a file lives as long as a duplicate does");
    close (one);
    tap_ok (files_open (&files, copy, RM_NODE_CONTROL, &gone) == first, "with the same id");
    one = fcntl (copy, F_DUPFD, 900);
    tap_ok (files_close (&files, copy) == 0, "also when the duplicate is not tracked");
    close (copy);
    tap_ok (files_descriptor (&files, first) == one && files_open (&files, one, RM_NODE_CONTROL, &gone) == first,
            "which is found (kcmp)");
    tap_ok (files_close (&files, one) == first && files_descriptor (&files, first) == -1, "the last one ends it");
    close (one);
    one = open ("/dev/null", O_RDWR);
    tap_ok (files_open (&files, one, RM_NODE_CONTROL, &gone) != first, "a later file has another id");
    tap_ok (files_open (&files, other, RM_NODE_UVM, &gone) != second && gone == second,
            "a descriptor that was reused for another node ends its file");
    test_many (&files);
    files_clear (&files);
    tap_ok (!files_may_track (&files, one) && !files_may_track (&files, other), "a child tracks nothing");
    close (one);
    close (other);
}

static void test_memory (void)
{
    enum { PIECES = 300 };
    struct memory memory = { 0 };
    unsigned char *pieces[PIECES] = { 0 };
    size_t sizes[PIECES];
    bool zeroed = true, kept = true;

    srand (1);
    for (int i = 0; i < 20000; i++) {
        int n = rand () % PIECES;

        if (pieces[n]) {
            for (size_t at = 0; at < sizes[n]; at++)
                kept &= pieces[n][at] == (unsigned char) n;
            memory_release (&memory, pieces[n], sizes[n]);
            pieces[n] = NULL;
            continue;
        }
        sizes[n] = (size_t) 1 << rand () % 17;
        sizes[n] += (size_t) rand () % sizes[n];
        pieces[n] = memory_allocate (&memory, sizes[n]);
        for (size_t at = 0; at < sizes[n]; at++)
            zeroed &= pieces[n][at] == 0;
        memset (pieces[n], n, sizes[n]);
    }
    tap_ok (zeroed, "memory is zeroed, also when it was used before");
    tap_ok (kept, "and no two pieces overlap");
}

int main (void)
{
    test_requests ();
    test_files ();
    test_memory ();
    return tap_done ();
}
