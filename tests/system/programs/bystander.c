/*
 * What programs without a GPU ask of the kernel, with requests whose low bytes NVIDIA's drivers have too: a shell of its
 * terminal, NCCL of its sockets and interfaces, a linker of its files. Prints how many of them the kernel knew.
 * bystander driver: one request of the driver that a guard gets, and those of a program's start that it does not.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define NVIDIA(number, size) (0xc0000000u | (uint32_t) (size) << 16 | 'F' << 8 | (number))

static const uint32_t requests[] = {
    0x5401,     0x5413,     0x5421,     0x5427,     0x5428,     0x5429,
    0x5450,     0x5451, /* TCGETS, TIOCGWINSZ, FIONBIO, ..., FIOCLEX */
    0x802c542a, 0x402c542b, 0x5434,     0x5435,             /* TCGETS2, TCSETS2 */
    0x541b,     0x5411,     0x8904,     0x8905,                             /* FIONREAD, TIOCOUTQ, SIOCGPGRP, SIOCATMARK */
    0x8912,     0x8913,     0x8927,     0x8933,     0x8946,     0x894d, /* SIOCGIFCONF, -FLAGS, -HWADDR, -INDEX, SIOCETHTOOL */
    0x1,        0x2,        0x80086601, 0xc020660b, 0x40049409, 0x80081272, /* FIBMAP, FIGETBSZ, FS_IOC_GETFLAGS, FIEMAP, FICLONE */
    0x80045200, 0x80047601, 0x125e,     0x1260,     0x4b33, /* RNDGETENTCNT, FS_IOC_GETVERSION, BLKROGET, BLKGETSIZE, KDGKBTYPE */
};

static unsigned ask (int file)
{
    unsigned known = 0;

    for (unsigned i = 0; file >= 0 && i < sizeof (requests) / sizeof (requests[0]); i++) {
        uint64_t room[512] = { 0 };

        if (requests[i] == 0x8927 || requests[i] == 0x8913 || requests[i] == 0x8933)
            strcpy ((char *) room, "lo");
        known += ioctl (file, (unsigned long) requests[i], room) >= 0;
    }
    if (file >= 0)
        close (file);
    return known;
}

static int driver (void)
{
    int control = open ("/dev/nvidiactl", O_RDWR), uvm = open ("/dev/nvidia-uvm", O_RDWR);
    uint32_t version[18] = { '2' }, client[12] = { 0 }, flags[4] = { 0 };

    ioctl (control, NVIDIA (0xd2, 72), version);
    ioctl (uvm, 0x30000001, flags);
    ioctl (uvm, 39, flags);
    client[3] = 0x41;
    return ioctl (control, NVIDIA (0x2b, 48), client) == 0 && client[10] == 0 ? 0 : 1;
}

int main (int argc, char **argv)
{
    unsigned known = 0;
    int memory;

    if (argc > 1 && strcmp (argv[1], "driver") == 0)
        return driver ();
    known += ask (posix_openpt (O_RDWR | O_NOCTTY));
    known += ask (socket (AF_INET, SOCK_STREAM, 0));
    known += ask (socket (AF_UNIX, SOCK_STREAM, 0));
    known += ask (open ("/proc/self/exe", O_RDONLY));
    known += ask (open ("/dev/urandom", O_RDONLY));
    known += ask (open ("/dev/null", O_RDWR));
    /* NCCL's memory between processes */
    memory = memfd_create ("shared", 0);
    if (ftruncate (memory, 1 << 20) != 0 || mmap (NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0) == MAP_FAILED)
        return 1;
    printf ("%u\n", known);
    return 0;
}
