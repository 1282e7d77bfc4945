/* The struct of a call and what it points at, read in one system call where that was foreseen (guard/memory.c). */
#include "guard/memory.h"
#include "guard/tenant.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REQUEST 0xc020462au
#define OTHER_REQUEST 0xc0104629u
#define HEAD 32u
#define PARAMS 64u
#define PAGE 4096u

static struct tenant *tenant; /* its lock is held, as in a call */
static uint8_t *head, *pages;

/* As call.c does: the struct, then what it says. */
static bool read_call (uint32_t request, const uint8_t *params, uint32_t size)
{
    memset (tenant->head, 0xee, HEAD);
    memset (tenant->params, 0xee, PAGE);
    return memory_read_head (tenant, getpid (), (uintptr_t) head, request, HEAD) &&
           memory_read_params (tenant, getpid (), (uintptr_t) params, size);
}

static bool is_read (const uint8_t *params, uint32_t size)
{
    return memcmp (tenant->head, head, HEAD) == 0 && memcmp (tenant->params, params, size) == 0;
}

static bool is_right (uint32_t request, const uint8_t *params, uint32_t size)
{
    return read_call (request, params, size) && is_read (params, size);
}

static void fill (uint8_t *at, uint8_t from, size_t size)
{
    for (size_t i = 0; i < size; i++)
        at[i] = (uint8_t) (from + i * 7);
}

int main (void)
{
    uint8_t *one, *other;

    tenant = calloc (1, sizeof (*tenant));
    pthread_mutex_init (&tenant->lock, NULL);
    pthread_mutex_lock (&tenant->lock);
    head = calloc (1, HEAD);
    pages = mmap (NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    one = pages + PAGE - 2 * PARAMS;
    other = pages + PAGE;
    fill (pages, 1, 3 * PAGE);

    tap_ok (is_right (REQUEST, one, PARAMS), "the first call of its kind is read");
    tap_ok (memory_read_head (tenant, getpid (), (uintptr_t) head, REQUEST, HEAD) && is_read (one, PARAMS),
            "the second time the params come with the struct");
    fill (one, 9, PARAMS);
    fill (head, 5, HEAD);
    tap_ok (is_right (REQUEST, one, PARAMS), "what changed meanwhile is seen");
    tap_ok (is_right (REQUEST, other, PARAMS), "params that lie elsewhere are read there");
    tap_ok (is_right (REQUEST, other, 2 * PARAMS), "params that became larger are read whole");
    tap_ok (is_right (REQUEST, other, 8), "params that became smaller are read");
    tap_ok (is_right (OTHER_REQUEST, one, PARAMS), "another call with the struct at the same place has its own params");
    tap_ok (is_right (REQUEST, other, PARAMS), "which the first call's are not taken for");
    tap_ok (read_call (REQUEST, NULL, 0), "a call without params is read");

    tap_ok (is_right (REQUEST, other, 2 * PARAMS), "params on a page of their own");
    mprotect (other, PAGE, PROT_NONE);
    tap_ok (is_right (REQUEST, one, PARAMS), "that page is gone: params that lie elsewhere are read all the same");
    tap_ok (!read_call (REQUEST, other, PARAMS), "params on it are not readable");
    mprotect (other, PAGE, PROT_READ | PROT_WRITE);
    tap_ok (is_right (REQUEST, other - 8, PARAMS), "params across the end of a page");
    mprotect (other, PAGE, PROT_NONE);
    tap_ok (!read_call (REQUEST, other - 8, PARAMS), "half of them is gone: that is not the whole");
    tap_ok (is_right (REQUEST, other - 8, 8), "the half that is there is enough where the call says so");
    mprotect (other, PAGE, PROT_READ | PROT_WRITE);
    tap_ok (!memory_read_head (tenant, getpid (), 8, REQUEST, HEAD), "a struct that is not readable");
    tap_ok (is_right (REQUEST, one, PARAMS), "does no harm to the next call");

    munmap (pages, 3 * PAGE);
    free (head);
    free (tenant);
    return tap_done ();
}
