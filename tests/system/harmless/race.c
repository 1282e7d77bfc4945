/* For -fsanitize=thread: one race, found in the first thread, and one that there would be if the sanitizer did not see that
 * memory was mapped anew. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

static atomic_int step;
static int number, *page;

/* Steps that are no synchronisation. */
static void wait_for (int wanted)
{
    while (atomic_load_explicit (&step, memory_order_relaxed) != wanted)
        sched_yield ();
}

static void go_to (int next) { atomic_store_explicit (&step, next, memory_order_relaxed); }

static void *other (void *nothing)
{
    *page = 1;
    go_to (1);
    wait_for (2);
    number++;
    go_to (3);
    wait_for (4); /* is there when the race is reported */
    return nothing;
}

int main (void)
{
    pthread_t thread;
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;

    page = mmap (NULL, 4096, PROT_READ | PROT_WRITE, anonymous, -1, 0);
    if (page == MAP_FAILED || pthread_create (&thread, NULL, other, NULL) != 0)
        return 1;
    wait_for (1);
    if (mmap (page, 4096, PROT_READ | PROT_WRITE, anonymous | MAP_FIXED, -1, 0) != (void *) page)
        return 1;
    *page = 2;
    puts (dlsym (RTLD_DEFAULT, "nvc_no_such_name") ? "found" : "not found"); /* leaves a text for dlerror */
    fflush (stdout);
    go_to (2);
    wait_for (3);
    number++;
    go_to (4);
    pthread_join (thread, NULL);
    printf ("%d %d\n", number, *page);
    return 0;
}
