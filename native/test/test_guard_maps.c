/* The text of /proc/PID/maps is the kernel's but for the paths in it, which are the container's (guard/maps.c). */
#include "guard/maps.h"
#include "tap.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UVM "700000000000-700040000000 rw-s 700000000000 00:06 5                      /dev/nvidia-uvm\n"
#define FILE_AT "600000000000-600000001000 r--s 00000000 00:01 7 "
#define GIB (UINT64_C (1) << 30)

static enum maps_result result;

/* The sum of a text. */
static uint64_t sum_of (const char *text, size_t size)
{
    int file = memfd_create ("maps", MFD_CLOEXEC);
    uint64_t bytes = 0;

    result = MAPS_UNKNOWN;
    if (file >= 0 && write (file, text, size) == (ssize_t) size && lseek (file, 0, SEEK_SET) == 0)
        result = maps_sum (file, &bytes);
    close (file);
    return bytes;
}

static bool is_sum (const char *text, uint64_t bytes) { return sum_of (text, strlen (text)) == bytes && result == MAPS_READ; }

static bool is_refused (const char *text)
{
    sum_of (text, strlen (text));
    return result == MAPS_UNKNOWN;
}

/* Whatever a piece of a line is as long as, what comes after it is no line. */
static bool is_one_line (size_t most)
{
    static const char lie[] = "40000000-0 ---s 40000000 ";
    char *text = malloc (sizeof (UVM) + sizeof (FILE_AT) + most + sizeof (lie) + 1);
    bool is_right = true;

    for (size_t length = 0; length <= most; length += length < 1200 ? 1 : 997) {
        size_t at = sizeof (FILE_AT) - 1;

        memcpy (text, FILE_AT, at);
        memset (text + at, '/', length);
        memcpy (text + at + length, lie, sizeof (lie) - 1);
        memcpy (text + at + length + sizeof (lie) - 1, "\n" UVM, sizeof (UVM));
        is_right &= sum_of (text, at + length + sizeof (lie) + sizeof (UVM) - 1) == GIB && result == MAPS_READ;
    }
    free (text);
    return is_right;
}

static bool is_real (void)
{
    int own = open ("/proc/self/maps", O_RDONLY | O_CLOEXEC), memory = memfd_create ("mapped", MFD_CLOEXEC);
    void *place = (void *) (uintptr_t) 0x200000000000, *page;
    uint64_t before = 0, bytes = 0;
    bool is_right;

    is_right = maps_sum (own, &before) == MAPS_READ;
    close (own);
    page = mmap (place, 3 * 4096, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, memory, (off_t) (uintptr_t) place);
    own = open ("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    is_right &= page == place && maps_sum (own, &bytes) == MAPS_READ && bytes == before + 3 * 4096;
    close (own);
    close (memory);
    munmap (page, 3 * 4096);
    return is_right;
}

int main (void)
{
    tap_ok (is_real (), "what this kernel writes is read");
    tap_ok (is_sum (UVM, GIB), "a shared mapping at its offset counts");
    tap_ok (is_sum ("1000-2000 r--s 00002000 00:01 7 /x\n3000-4000 r--p 00003000 00:01 7 /x\n", 0), "no other one does");
    tap_ok (is_sum (FILE_AT "/a " UVM UVM, GIB), "text of a path is no mapping");
    tap_ok (is_one_line (70000), "nor is what lies anywhere in a long one");
    tap_ok (is_sum (UVM "7f0000000000-7f0000001000 r--s 00000000 00:01 7 /\r\v\f\x1c\x1d\x1e\x85\xe2\x80\xa8" UVM + 0, 0) == false,
            "nothing but a newline ends a line");
    tap_ok (sum_of ("", 0) == 0 && result == MAPS_NONE, "a thread that has ended has no mapping");
    tap_ok (is_refused ("40000000-0 ---s 40000000 00:01 7 /x\n"), "a mapping that ends before it begins");
    tap_ok (is_refused ("1000-1000 ---s 1000 00:01 7 /x\n"), "or is empty");
    tap_ok (is_refused ("3000-4000 ---s 3000 00:01 7 /x\n1000-2000 ---s 1000 00:01 7 /x\n"), "addresses that go backwards");
    tap_ok (is_refused ("1000-3000 ---s 1000 00:01 7 /x\n2000-4000 ---s 2000 00:01 7 /x\n"), "or overlap");
    tap_ok (is_refused ("1000-2000 ---s 1000 00:01 7 /x"), "a line without an end");
    tap_ok (is_refused ("1000-2000 ---s 1000\n") && is_refused ("\n") && is_refused ("1000-2000\n") && is_refused (UVM "x\n"),
            "a line without its fields");
    tap_ok (is_refused ("-1000-2000 ---s 1000 00:01 7 /x\n") && is_refused (" 1000-2000 ---s 1000 00:01 7 /x\n") &&
                is_refused ("0x1000-2000 ---s 1000 00:01 7 /x\n") && is_refused ("1000-2000 ---S 1000 00:01 7 /x\n") &&
                is_refused ("11111111111111111-2 ---s 1000 00:01 7 /x\n") && is_refused ("1000-2000  ---s 1000 00:01 7 /x\n"),
            "numbers and rights are the kernel's own");
    tap_ok (sum_of ("0-ffffffffffffffff ---s 0 00:01 7 /x\n", 37) == UINT64_MAX && result == MAPS_READ,
            "no sum begins again at nothing");
    return tap_done ();
}
