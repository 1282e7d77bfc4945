/* The flat directory of device nodes: lookup, attributes, open, read and write. Runs in nvc-sim-manager, on the leading
 * thread (fuse_server.c). */
#include "fuse.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOREVER UINT64_C (1000000000)

static const struct node *node_of (const struct server *server, uint64_t inode)
{
    return inode > ROOT_INODE && inode - 2 < server->node_count ? &server->nodes[inode - 2] : NULL;
}

static void fill (struct fuse_attr *attributes, uint64_t inode)
{
    bool root = inode == ROOT_INODE;

    memset (attributes, 0, sizeof (*attributes));
    attributes->ino = inode;
    attributes->mode = root ? S_IFDIR | 0755 : S_IFREG | 0666;
    attributes->nlink = root ? 2 : 1;
    attributes->size = root ? 0 : NODE_SIZE;
    attributes->blksize = 4096;
}

static void look_up (struct server *server, const struct fuse_in_header *header, const char *name)
{
    struct fuse_entry_out entry = { .entry_valid = FOREVER, .attr_valid = FOREVER };

    for (uint32_t i = 0; i < server->node_count && header->nodeid == ROOT_INODE; i++) {
        if (strcmp (server->nodes[i].name, name) != 0)
            continue;
        entry.nodeid = i + 2;
        fill (&entry.attr, entry.nodeid);
        server_reply (server, header->unique, 0, &entry, sizeof (entry));
        return;
    }
    server_reply (server, header->unique, -ENOENT, NULL, 0);
}

static void attributes (struct server *server, const struct fuse_in_header *header)
{
    struct fuse_attr_out out = { .attr_valid = FOREVER };

    fill (&out.attr, header->nodeid);
    server_reply (server, header->unique, 0, &out, sizeof (out));
}

static void open_node (struct server *server, const struct fuse_in_header *header)
{
    const struct node *node = node_of (server, header->nodeid);
    struct manager_file *file = node != NULL ? manager_open (server->manager, node->kind, node->gpu) : NULL;
    /* NOFLUSH: a close must not wait for a reply, since not even SIGKILL ends that wait. A server that is killed while
     * it closes its duplicate of such a file would never exit, keep the connection open, and block its callers for
     * ever. */
    struct fuse_open_out out = { .fh = (uint64_t) (uintptr_t) file, .open_flags = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH };

    if (file == NULL)
        server_reply (server, header->unique, node == NULL ? -ENOENT : -ENOMEM, NULL, 0);
    else
        server_reply (server, header->unique, 0, &out, sizeof (out));
}

/* Of a mapped page, too. */
static void read_node (struct server *server, const struct fuse_in_header *header, const struct fuse_read_in *in)
{
    static uint8_t bytes[SERVER_BUFFER]; /* the leading thread's */
    const struct node *node = node_of (server, header->nodeid);
    size_t size = in->size < sizeof (bytes) ? in->size : sizeof (bytes);

    if (node != NULL && node->kind == MANAGER_CONTROL)
        manager_read (server->manager, in->offset, bytes, size);
    else
        memset (bytes, 0, size);
    server_reply (server, header->unique, 0, bytes, size);
}

void server_refresh (struct server *server)
{
    struct fuse_notify_inval_inode_out pages = { .off = 0, .len = 0 };

    for (uint32_t i = 0; i < server->node_count; i++) {
        pages.ino = i + 2;
        if (server->nodes[i].kind == MANAGER_CONTROL)
            server_reply (server, 0, FUSE_NOTIFY_INVAL_INODE, &pages, sizeof (pages));
    }
}

static void read_directory (struct server *server, const struct fuse_in_header *header, const struct fuse_read_in *in)
{
    char buffer[8192];
    size_t used = 0;

    for (uint64_t at = in->offset; at < server->node_count + 2U; at++) {
        const char *name = at == 0 ? "." : at == 1 ? ".." : server->nodes[at - 2].name;
        size_t length = strlen (name), size = FUSE_DIRENT_ALIGN (FUSE_NAME_OFFSET + length);
        struct fuse_dirent entry = {
            .ino = at < 2 ? ROOT_INODE : at, .off = at + 1, .namelen = (uint32_t) length, .type = at < 2 ? DT_DIR : DT_REG
        };
        if (used + size > in->size || used + size > sizeof (buffer))
            break;
        memset (buffer + used, 0, size);
        memcpy (buffer + used, &entry, FUSE_NAME_OFFSET);
        memcpy (buffer + used + FUSE_NAME_OFFSET, name, length);
        used += size;
    }
    server_reply (server, header->unique, 0, buffer, used);
}

static void greet (struct server *server, const struct fuse_in_header *header, const struct fuse_init_in *in)
{
    struct fuse_init_out out = { .major = FUSE_KERNEL_VERSION,
                                 .minor = FUSE_KERNEL_MINOR_VERSION,
                                 .max_readahead = in->max_readahead,
                                 .flags = in->flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES),
                                 .max_background = 64,
                                 .congestion_threshold = 48,
                                 .max_write = 128 * 1024,
                                 .max_pages = 32,
                                 .time_gran = 1 };

    if (in->major != FUSE_KERNEL_VERSION) {
        server_reply (server, header->unique, -EPROTO, NULL, 0);
        return;
    }
    server_reply (server, header->unique, 0, &out, sizeof (out));
    pthread_mutex_lock (&server->jobs_lock);
    server->greeted = true;
    pthread_cond_broadcast (&server->started);
    pthread_mutex_unlock (&server->jobs_lock);
}

void server_file_request (struct server *server, const struct fuse_in_header *header, const void *body)
{
    struct fuse_statfs_out statistics = { .st = { .bsize = 4096, .frsize = 4096, .namelen = 255 } };
    struct fuse_open_out directory = { .fh = 0 };
    struct fuse_write_out written = { .size = 0 };

    switch (header->opcode) {
    case FUSE_INIT:
        greet (server, header, body);
        break;
    case FUSE_LOOKUP:
        look_up (server, header, body);
        break;
    case FUSE_GETATTR:
    case FUSE_SETATTR: /* accepted without effect: a runtime may chmod the nodes of a container */
        attributes (server, header);
        break;
    case FUSE_OPEN:
        open_node (server, header);
        break;
    case FUSE_READ:
        read_node (server, header, body);
        break;
    case FUSE_WRITE:
        written.size = ((const struct fuse_write_in *) body)->size;
        server_reply (server, header->unique, 0, &written, sizeof (written));
        break;
    case FUSE_RELEASE:
        manager_release ((struct manager_file *) (uintptr_t) ((const struct fuse_release_in *) body)->fh);
        server_reply (server, header->unique, 0, NULL, 0);
        break;
    case FUSE_OPENDIR:
        server_reply (server, header->unique, 0, &directory, sizeof (directory));
        break;
    case FUSE_READDIR:
        read_directory (server, header, body);
        break;
    case FUSE_STATFS:
        server_reply (server, header->unique, 0, &statistics, sizeof (statistics));
        break;
    case FUSE_RELEASEDIR:
    case FUSE_DESTROY:
        server_reply (server, header->unique, 0, NULL, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        break; /* has no reply */
    default:
        server_reply (server, header->unique, -ENOSYS, NULL, 0);
    }
}
