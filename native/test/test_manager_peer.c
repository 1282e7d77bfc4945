/* Registrations with the simulated manager's object for third-party devices: once each, and how they end. */
#include "manager_bed.h"
#include "tap.h"

#define PEER 0x300u
#define MEMORY 0x301u
#define SPACE 0x302u
#define REGISTER_SPACE 0x503c0102u
#define UNREGISTER_SPACE 0x503c0103u
#define REGISTER 0x503c0104u
#define UNREGISTER 0x503c0105u
#define ADDRESS (UINT64_C (0x7f) << 32)

static struct manager_file *file;
static uint32_t client;

static uint32_t add (uint32_t peer, uint32_t memory, uint64_t address, uint64_t size, uint64_t offset)
{
    uint64_t params[4] = { memory, address, size, offset };

    return bed_control (file, client, peer, REGISTER, params, sizeof (params));
}

static uint32_t drop (uint32_t peer, uint32_t number, uint32_t handle)
{
    return bed_control (file, client, peer, number, &handle, sizeof (handle));
}

static uint32_t add_peer (uint32_t handle)
{
    uint32_t flags = 0;

    return bed_alloc (file, client, SUBDEVICE, handle, 0x503C, &flags);
}

static void memory (void)
{
    tap_ok (add (PEER, MEMORY, ADDRESS, 2 * MIB, 0) == 0, "memory is registered");
    tap_ok (add (PEER, MEMORY, ADDRESS, 2 * MIB, 0) == 0x19 && add (PEER, MEMORY, 2 * ADDRESS, MIB, 0) == 0x19,
            "once, whatever the address of the second (0x19)");
    tap_ok (drop (PEER, UNREGISTER, MEMORY) == 0 && drop (PEER, UNREGISTER, MEMORY) == 0x57, "and unregistered, once (0x57)");
    tap_ok (add (PEER, MEMORY, ADDRESS, 2 * MIB, 0) == 0, "then it may be registered again");
    tap_ok (add_peer (PEER + 0x100) == 0 && add (PEER + 0x100, MEMORY, ADDRESS, 2 * MIB, 0) == 0, "with another object, too");
    bed_free (file, client, MEMORY);
    tap_ok (drop (PEER, UNREGISTER, MEMORY) == 0x57 && drop (PEER + 0x100, UNREGISTER, MEMORY) == 0x57,
            "a registration ends with its memory");
    bed_take (file, client, MEMORY, 2 * MIB);
    tap_ok (add (PEER, MEMORY, ADDRESS, 2 * MIB, 0) == 0, "other memory with its handle is other memory");
    bed_free (file, client, PEER);
    tap_ok (add_peer (PEER) == 0 && add (PEER, MEMORY, ADDRESS, 2 * MIB, 0) == 0, "a registration ends with its object");
    drop (PEER, UNREGISTER, MEMORY);
}

static void refusals (void)
{
    tap_ok (add (PEER, 0xdead, ADDRESS, MIB, 0) == 0x33 && add (PEER, SPACE, ADDRESS, MIB, 0) == 0x33,
            "an object that is no memory is refused (0x33)");
    tap_ok (add (PEER, MEMORY, ADDRESS, 0, 0) == 0x1F && add (PEER, MEMORY, ADDRESS, 4096, 0) == 0x1F &&
                add (PEER, MEMORY, ADDRESS + 4096, MIB, 0) == 0x1F && add (PEER, MEMORY, ADDRESS, 2 * MIB, MIB) == 0x1F,
            "so are sizes, addresses and offsets that do not fit (0x1F)");
    tap_ok (add (SPACE, MEMORY, ADDRESS, MIB, 0) == 0x56, "another object does not support it (0x56)");
    tap_ok (drop (PEER, UNREGISTER, MEMORY) == 0x57, "nothing of that was registered");
}

static void spaces (void)
{
    uint64_t params[2] = { SPACE, 0 };

    tap_ok (bed_control (file, client, PEER, REGISTER_SPACE, params, sizeof (params)) == 0 && params[1] != 0,
            "an address space is registered, and has a token");
    params[1] = 0;
    tap_ok (bed_control (file, client, PEER, REGISTER_SPACE, params, sizeof (params)) == 0x19 && params[1] == 0,
            "once: the token is not returned again");
    tap_ok (drop (PEER, UNREGISTER_SPACE, SPACE) == 0 && drop (PEER, UNREGISTER_SPACE, SPACE) == 0x57, "it is unregistered once");
    tap_ok (bed_control (file, client, PEER, REGISTER_SPACE, params, sizeof (params)) == 0 && params[1] != 0,
            "and registered again");
}

int main (void)
{
    uint32_t nothing[14] = { 0 };

    bed_start ();
    file = manager_open (bed, MANAGER_CONTROL, 0);
    client = bed_client (file, 0);
    bed_alloc (file, client, DEVICE, SPACE, 0x90F1, nothing);
    tap_ok (add_peer (PEER) == 0 && bed_take (file, client, MEMORY, 2 * MIB) == 0, "there is an object for third parties");
    memory ();
    refusals ();
    spaces ();
    tap_ok (add (PEER, MEMORY, ADDRESS, MIB, 0) == 0, "memory registered at the close of the file");
    manager_release (file);
    tap_ok (bed_used (0) == 0, "ends with it");
    bed_stop ();
    return tap_done ();
}
