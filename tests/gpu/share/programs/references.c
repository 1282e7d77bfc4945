/*
 * Memory with more than one reference: what is free while handles, mappings, exported descriptors and other processes
 * still hold it.
 *
 * usage: references mapped | exported | ipc        BYTES of each piece: 256 MiB
 * A second process, where one is needed, is forked before CUDA begins and told over a socket what to do.
 */
#include "check.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (256 * MIB)

static CUdevice device;
static int peer; /* the other process */

static CUmemAllocationProp exportable (void)
{
    CUmemAllocationProp properties;
    memset (&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}

static CUdeviceptr map (CUmemGenericAllocationHandle handle)
{
    CUdeviceptr address;
    CUmemAccessDesc access;
    memset (&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST (cuMemAddressReserve (&address, BYTES, 0, 0, 0));
    MUST (cuMemMap (address, BYTES, 0, handle, 0));
    MUST (cuMemSetAccess (address, BYTES, &access, 1));
    MUST (cuMemsetD8 (address, 7, BYTES));
    MUST (cuCtxSynchronize ());
    return address;
}

static void unmap (CUdeviceptr address)
{
    MUST (cuMemUnmap (address, BYTES));
    MUST (cuMemAddressFree (address, BYTES));
}

/* What the driver allocates once, so that the scene's own numbers are its own. */
static void warm_up (void)
{
    CUmemAllocationProp properties = exportable ();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    MUST (cuMemCreate (&handle, BYTES, &properties, 0));
    address = map (handle);
    MUST (cuMemRelease (handle));
    unmap (address);
    MUST (cuMemAlloc (&address, BYTES));
    MUST (cuMemFree (address));
}

static void check_io (bool good, const char *what)
{
    if (good)
        return;
    perror (what);
    exit (1);
}

/* One message: `bytes` of data, and a descriptor when it is not -1. */
static void send_message (const void *data, size_t bytes, int descriptor)
{
    union {
        char space[CMSG_SPACE (sizeof (int))];
        struct cmsghdr header;
    } control;
    struct iovec part = { (void *) (uintptr_t) data, bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    memset (&control, 0, sizeof control);
    if (descriptor != -1) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR (&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN (sizeof (int));
        memcpy (CMSG_DATA (header), &descriptor, sizeof descriptor);
    }
    check_io (sendmsg (peer, &message, 0) == (ssize_t) bytes, "sendmsg");
}

static int receive_message (void *data, size_t bytes)
{
    union {
        char space[CMSG_SPACE (sizeof (int))];
        struct cmsghdr header;
    } control;
    struct iovec part = { data, bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    message.msg_control = control.space;
    message.msg_controllen = sizeof control.space;
    check_io (recvmsg (peer, &message, MSG_CMSG_CLOEXEC) == (ssize_t) bytes, "recvmsg");
    struct cmsghdr *header = CMSG_FIRSTHDR (&message);
    int descriptor = -1;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS)
        memcpy (&descriptor, CMSG_DATA (header), sizeof descriptor);
    return descriptor;
}

/* Both sides pass here together. */
static void meet (void)
{
    char token = 'm';
    send_message (&token, 1, -1);
    receive_message (&token, 1);
}

static void mapped (void)
{
    CUmemAllocationProp properties = exportable ();
    CUmemGenericAllocationHandle handle;
    MUST (cuMemCreate (&handle, BYTES, &properties, 0));
    CUdeviceptr first = map (handle), second = map (handle);
    say ("free_mapped_twice", memory_free ());
    MUST (cuMemRelease (handle));
    say ("free_released", memory_free ());
    unmap (first);
    say ("free_unmapped_once", memory_free ());
    unmap (second);
}

static void exporter (void)
{
    CUmemAllocationProp properties = exportable ();
    CUmemGenericAllocationHandle handle;
    int descriptor = -1;
    MUST (cuMemCreate (&handle, BYTES, &properties, 0));
    MUST (cuMemExportToShareableHandle (&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    meet ();
    say ("free_before_import", memory_free ());
    send_message ("d", 1, descriptor);
    meet (); /* imported and mapped there */
    say ("free_imported", memory_free ());
    MUST (cuMemRelease (handle));
    say ("free_descriptor_left", memory_free ());
    close (descriptor);
    meet (); /* let go there */
    meet ();
}

static void importer (void)
{
    char data;
    CUmemGenericAllocationHandle handle;
    meet ();
    int descriptor = receive_message (&data, 1);
    MUST (cuMemImportFromShareableHandle (&handle, (void *) (intptr_t) descriptor,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close (descriptor);
    CUdeviceptr address = map (handle);
    meet ();
    meet ();
    MUST (cuMemRelease (handle));
    unmap (address);
    meet ();
}

static void ipc_owner (void)
{
    CUdeviceptr address;
    CUipcMemHandle handle;
    MUST (cuMemAlloc (&address, BYTES));
    MUST (cuIpcGetMemHandle (&handle, address));
    meet ();
    say ("free_before_open", memory_free ());
    send_message (&handle, sizeof handle, -1);
    meet (); /* opened there */
    say ("free_opened", memory_free ());
    meet (); /* closed there */
    say ("free_closed", memory_free ());
    MUST (cuMemFree (address));
    meet ();
}

static void ipc_user (void)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    meet ();
    receive_message (&handle, sizeof handle);
    MUST (cuIpcOpenMemHandle (&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    MUST (cuMemsetD8 (address, 9, BYTES));
    MUST (cuCtxSynchronize ());
    meet ();
    MUST (cuIpcCloseMemHandle (address));
    meet ();
    meet ();
}

static void alone (void (*scene) (void))
{
    device = begin_cuda ();
    warm_up ();
    say ("free_start", memory_free ());
    scene ();
    say ("free_end", memory_free ());
}

static int together (void (*owner) (void), void (*user) (void))
{
    int sockets[2], status;
    check_io (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
    pid_t child = fork ();
    check_io (child != -1, "fork");
    peer = sockets[child == 0];
    close (sockets[child != 0]);
    device = begin_cuda ();
    warm_up ();
    meet (); /* both contexts are there: what they cost is not the scene's */
    if (child == 0) {
        user ();
        exit (0);
    }
    say ("free_start", memory_free ());
    owner ();
    check_io (waitpid (child, &status, 0) == child, "waitpid");
    say ("free_end", memory_free ()); /* and what the other context cost */
    return status != 0;
}

int main (int argc, char **argv)
{
    const char *scene = argc == 2 ? argv[1] : "";
    if (strcmp (scene, "mapped") == 0)
        alone (mapped);
    else if (strcmp (scene, "exported") == 0)
        return together (exporter, importer);
    else if (strcmp (scene, "ipc") == 0)
        return together (ipc_owner, ipc_user);
    else
        return 2;
    return 0;
}
