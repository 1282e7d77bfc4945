/*
 * Memory with more than one reference: what is free while handles, mappings, exported descriptors and other processes
 * still hold it.
 *
 * usage: references mapped | exported | fabric | ipc        BYTES of each piece: 256 MiB
 * "exported" and "fabric" say the status of making and of exporting, and end there if one of them is not 0.
 */
#include "peers.h"

#define BYTES (256 * MIB)

/* What the exporter sends: its status, and the handle where that is no descriptor. */
struct ticket {
    CUresult status;
    CUmemFabricHandle fabric;
};

static CUdevice device;
static CUmemAllocationHandleType shared_by = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

static CUmemAllocationProp exportable (void)
{
    CUmemAllocationProp properties;
    memset (&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.requestedHandleTypes = shared_by;
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

/* CUDA begins; and what the driver allocates once, so that the scene's own numbers are its own. */
static void prepare (void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    device = begin_cuda ();
    CUmemAllocationProp properties = exportable ();
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST (cuMemCreate (&handle, BYTES, &properties, 0));
    address = map (handle);
    MUST (cuMemRelease (handle));
    unmap (address);
    MUST (cuMemAlloc (&address, BYTES));
    MUST (cuMemFree (address));
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
    struct ticket ticket;
    bool by_descriptor = shared_by == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int descriptor = -1;
    memset (&ticket, 0, sizeof ticket);
    ticket.status = cuMemCreate (&handle, BYTES, &properties, 0);
    say ("status_create", (unsigned long long) ticket.status);
    if (ticket.status == CUDA_SUCCESS) {
        void *shared = by_descriptor ? (void *) &descriptor : (void *) &ticket.fabric;
        ticket.status = cuMemExportToShareableHandle (shared, handle, shared_by, 0);
        say ("status_export", (unsigned long long) ticket.status);
        if (ticket.status != CUDA_SUCCESS)
            MUST (cuMemRelease (handle));
    }
    meet ();
    send_message (&ticket, sizeof ticket, descriptor);
    if (ticket.status != CUDA_SUCCESS)
        return;
    say ("free_before_import", memory_free ());
    meet ();
    meet (); /* imported and mapped there */
    say ("free_imported", memory_free ());
    MUST (cuMemRelease (handle));
    say ("free_descriptor_left", memory_free ());
    if (descriptor != -1)
        close (descriptor);
    meet (); /* let go there */
    meet ();
}

static void importer (void)
{
    struct ticket ticket;
    CUmemGenericAllocationHandle handle;
    meet ();
    int descriptor = receive_message (&ticket, sizeof ticket);
    if (ticket.status != CUDA_SUCCESS)
        return;
    meet ();
    void *shared = descriptor != -1 ? (void *) (intptr_t) descriptor : (void *) &ticket.fabric;
    MUST (cuMemImportFromShareableHandle (&handle, shared, shared_by));
    if (descriptor != -1)
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

static int fabric (void)
{
    shared_by = CU_MEM_HANDLE_TYPE_FABRIC;
    return together (prepare, exporter, importer);
}

int main (int argc, char **argv)
{
    const char *scene = argc == 2 ? argv[1] : "";
    if (strcmp (scene, "mapped") == 0)
        return alone (prepare, mapped);
    if (strcmp (scene, "exported") == 0)
        return together (prepare, exporter, importer);
    if (strcmp (scene, "fabric") == 0)
        return fabric ();
    if (strcmp (scene, "ipc") == 0)
        return together (prepare, ipc_owner, ipc_user);
    return 2;
}
