/* What a FREE, or the last close of a file, would give back: pieces whose last handle goes with it. */
#include "rm_bench.h"
#include "tap.h"

static struct rm_piece found[16];

static size_t below (struct bench *b, uint32_t client, uint32_t handle)
{
    return rm_pieces (b->fake->rm, client, handle, found, 16);
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
    return tap_done ();
}
