/*
 * The state of the process (process.h): creation, fork and vfork, lock, limits, ABI and slot.
 *
 * Runs in every process of a container that makes a call on a driver's node, on the calling thread or the nvc-shim
 * thread.
 */
#include "process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "identity.h"
#include "limits.h"
#include "plain.h"
#include "raw.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct process shim_process;

static struct pages *pages_of (struct process *process)
{
    struct pages *pages = LOAD (process->pages), *expected = NULL;

    if (pages)
        return pages;
    pages = raw_pages (sizeof *pages);
    if (!pages)
        return NULL;
    process->wiped = RAW3 (SYS_madvise, pages, sizeof *pages, MADV_WIPEONFORK) == 0;
    if (__atomic_compare_exchange_n (&process->pages, &expected, pages, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return pages;
    RAW2 (SYS_munmap, pages, sizeof *pages);
    return expected;
}

/* Initializes a process, or a forked child, which inherits the pages' address and the mapped limits alone. The parent's
 * region stays mapped in the child, and with it the lock of the parent's slot; the child's copy of the parent's rm is
 * not used. */
static void begin (struct process *process)
{
    struct process *p = process;

    files_clear (&p->files);
    p->limits_checked = p->known = p->usable = p->unknown_driver = p->attached = p->has_managed = p->in_managed = false;
    p->log_path_read = p->current = false;
    p->abi = NULL;
    p->rm = NULL;
    p->thread = THREAD_NONE;
    p->regrouped = p->capped = p->frozen = 0;
    p->region_digest = 0;
    p->limits = &p->pages->limits;
    p->applied = p->pages->applied;
    p->caps = p->pages->caps;
    p->frozen_since = p->pages->frozen_since;
    memory_begin (&p->memory, p->pages->memory, sizeof p->pages->memory);
    host_set (&p->host);
}

static bool is_of_caller (const struct token *token) { return token->pid == (uint32_t) RAW0 (SYS_getpid); }

/* False in a forked child: its token is wiped. */
static bool has_begun (const struct process *process, const struct token *token)
{
    return LOAD (token->state) == 2 && (process->wiped || is_of_caller (token));
}

static void begin_once (struct process *process, struct token *token)
{
    uint32_t expected;

    while (!has_begun (process, token)) {
        if (LOAD (token->state) == 2) /* a forked child on a kernel without MADV_WIPEONFORK */
            RAW3 (SYS_madvise, process->pages, sizeof *process->pages, MADV_DONTNEED);
        expected = 0;
        if (__atomic_compare_exchange_n (&token->state, &expected, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            begin (process);
            token->pid = (uint32_t) RAW0 (SYS_getpid);
            STORE (token->state, 2u);
        } else {
            raw_sleep (10000);
        }
    }
}

struct process *process_enter (uint64_t *signals)
{
    struct pages *pages = pages_of (&shim_process);

    if (!pages)
        return NULL;
    *signals = signals_block (0);
    begin_once (&shim_process, &pages->token);
    lock_hold (&pages->token.lock);
    return &shim_process;
}

struct process *process_enter_known (uint64_t *signals)
{
    struct pages *pages = LOAD (shim_process.pages);

    if (!pages || !has_begun (&shim_process, &pages->token))
        return NULL;
    *signals = lock_take (&pages->token.lock);
    return &shim_process;
}

struct process *process_enter_own (uint64_t *signals)
{
    struct pages *pages = LOAD (shim_process.pages);

    return pages && is_of_caller (&pages->token) ? process_enter_known (signals) : NULL;
}

void process_leave (struct process *process, uint64_t signals) { lock_give (&process->pages->token.lock, signals); }

void process_unlock (struct process *process) { lock_release (&process->pages->token.lock); }

void process_lock (struct process *process) { lock_hold (&process->pages->token.lock); }

bool process_is_itself (const struct process *process) { return is_of_caller (&process->pages->token); }

/* Maps the container's limits, or where that file does not exist those of the environment, unless the program has more
 * rights than its caller. */
static void map_limits (struct process *process)
{
    const char *limits = SHARE_LIMITS_PATH, *region = SHARE_REGION_PATH;
    bool there;

    process->shared = limits_map (limits, &there);
    if (!there && !identity_secure ()) {
        limits = identity_variable (SHARE_LIMITS_ENVIRONMENT);
        region = identity_variable (SHARE_REGION_ENVIRONMENT);
        process->shared = limits ? limits_map (limits, &there) : NULL;
        if (region && strlen (region) < sizeof process->region_variable) {
            memcpy (process->region_variable, region, strlen (region) + 1);
            region = process->region_variable;
        } else {
            region = NULL;
        }
    }
    process->region_path = region;
}

/* Reads into a second copy: valid limits are never replaced by invalid ones. */
static bool reread_over (struct process *process)
{
    if (!process->fresh && !(process->fresh = raw_pages (sizeof *process->fresh)))
        return false;
    if (!limits_read (process->shared, process->fresh))
        return false;
    *process->limits = *process->fresh;
    return true;
}

void process_reread_limits (struct process *process)
{
    uint32_t generation;

    if (!process->shared)
        map_limits (process);
    if (!process->shared)
        return;
    generation = LOAD (process->shared->generation);
    process->limits_checked = true;
    STORE (process->current, false);
    process->usable = process->known ? reread_over (process) : limits_read (process->shared, process->limits);
    process->generation = generation;
    if (!process->usable)
        return;
    process->generation = process->limits->generation;
    process->known = true;
    process->regrouped = ~0u;
}

/* Without limits there is no table of nodes: recognition by name and device number, which suffices to refuse memory. */
static enum rm_node node_kind_without_limits (int descriptor, const struct stat *file)
{
    char link[32] = "/proc/self/fd/", path[256], *digit = link + 14, digits[12];
    int length = 0, begin_of_name = 0;
    long got;

    if (!S_ISCHR (file->st_mode) && !S_ISREG (file->st_mode))
        return RM_NODE_OTHER;
    do
        digits[length++] = (char) ('0' + descriptor % 10);
    while ((descriptor /= 10) > 0);
    while (length)
        *digit++ = digits[--length];
    *digit = '\0';
    got = RAW4 (SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (got < 0)
        return RM_NODE_OTHER;
    path[got] = '\0';
    for (int i = 0; i < got; i++)
        if (path[i] == '/')
            begin_of_name = i + 1;
    if (strcmp (path + begin_of_name, "nvidiactl") == 0 || (S_ISCHR (file->st_mode) && file->st_rdev == makedev (195, 255)))
        return RM_NODE_CONTROL;
    return strcmp (path + begin_of_name, "nvidia-uvm") == 0 ? RM_NODE_UVM : RM_NODE_OTHER;
}

enum rm_node process_node_kind (struct process *process, int descriptor)
{
    struct stat file;

    if (RAW2 (SYS_fstat, descriptor, &file) != 0)
        return RM_NODE_OTHER;
    return process->known ? limits_node_kind (process->limits, &file) : node_kind_without_limits (descriptor, &file);
}

bool process_knows_driver (struct process *process)
{
    char version[64];
    long length;

    if (process->abi || process->unknown_driver)
        return process->abi != NULL;
    if (process->known) {
        process->abi = rm_abi_find (process->limits->driver);
    } else {
        length = raw_read_file ("/sys/module/nvidia/version", version, sizeof version);
        if (length > 0 && version[length - 1] == '\n')
            version[length - 1] = '\0';
        /* The calls that allocate memory are the same in every version that rm supports. */
        process->abi = rm_abi_find (length > 0 ? version : "580.105.08");
    }
    process->unknown_driver = process->abi == NULL;
    return !process->unknown_driver;
}

bool process_attach (struct process *process)
{
    files_begin (&process->files, &process->pages->files);
    if (!process->attached) {
        STORE (process->attached, region_attach (&process->region, process->region_path));
        if (process->attached && process->unknown_driver) {
            __atomic_store_n (&process->region.header->unknown_driver, 1, __ATOMIC_RELAXED);
            log_note (process, "unknown-driver", 0);
        }
        if (process->attached && process->region.private)
            log_note (process, "no-region", 0);
        if (process->attached && !process->usable)
            log_note (process, "no-limits", 0);
    }
    if (process->attached && process->abi && !process->rm)
        process->rm = rm_create (process->abi, RM_POSTURE_SHIM, &process->host, process);
    return process->attached && (process->rm || process->unknown_driver);
}
