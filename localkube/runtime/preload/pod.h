/* What the files of the preload library share: the pod that this process belongs to. */
#ifndef TRAINYARD_POD_H
#define TRAINYARD_POD_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MAX_PATHS 64
#define MAX_HOSTS 64

/* The C library's own function of a name, found once. */
#define REAL(result, name, ...)                                                                                   \
    static result (*real)(__VA_ARGS__);                                                                           \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

struct path {
    char seen[PATH_MAX], real[PATH_MAX];
    size_t seen_length, real_length;
    int read_only;
};

struct host {
    char name[256];
    uint32_t address; /* in the host's byte order, as all addresses here */
};

struct pod {
    int active;
    uint32_t address;
    uint32_t octet;      /* pods are at 127.octet.x.y, Services at 127.(octet + 1).x.y */
    uint32_t low;        /* added to ports below 1024; 0 where they may be used */
    uint32_t name_server;
    char hostname[256];
    char search[6][256];
    int searches;
    struct path paths[MAX_PATHS];
    int path_count;
    struct host hosts[MAX_HOSTS];
    int host_count;
};

/* Only the functions of the C library are seen by programs, and this one. */
int trainyard_enter(const char *file);

#pragma GCC visibility push(hidden)
extern struct pod pod;

/* paths.c: the real path behind one that the pod sees; NULL and EROFS for writing where it may not. */
const char *map_path(const char *path, char *room, int writing);
/* paths.c: the path that the pod sees, in place, for a real one. */
void unmap_path(char *path, size_t size);

/* addresses.c: the address of this machine that stands for one of the cluster, and back. */
int is_cluster(uint32_t address);
struct sockaddr_storage to_machine(const struct sockaddr *given, socklen_t *length);
void to_cluster(struct sockaddr *address, socklen_t room);
int inet_address(const struct sockaddr *given, uint32_t *address);

/* dns.c: how many addresses a full name has; -1 when the name server does not answer. */
int ask_name_server(const char *name, uint32_t *found, int most);

#pragma GCC visibility pop

#endif
