/* Sockets: a pod listens on its own address, and reaches others and Services at theirs. */
#include "pod.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

/* Sockets that were bound to the loopback address say so when they are asked: one bit a descriptor. */
static unsigned char on_loopback[8192];

static void remember(int fd, int loopback)
{
    if (fd < 0 || fd >= (int)sizeof on_loopback * 8) return;
    if (loopback) on_loopback[fd / 8] |= (unsigned char)(1u << fd % 8);
    else on_loopback[fd / 8] &= (unsigned char)~(1u << fd % 8);
}

static int remembered(int fd)
{
    return fd >= 0 && fd < (int)sizeof on_loopback * 8 && on_loopback[fd / 8] >> fd % 8 & 1;
}

static int real_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    REAL(int, "bind", int, const struct sockaddr *, socklen_t);
    return real(fd, address, length);
}

static int real_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    REAL(int, "connect", int, const struct sockaddr *, socklen_t);
    return real(fd, address, length);
}

/* A Unix socket below a mapped directory; a real path that is too long is reached by its directory. */
static int with_local(int (*call)(int, const struct sockaddr *, socklen_t), int fd, const struct sockaddr *given,
                      socklen_t length)
{
    const struct sockaddr_un *local = (const struct sockaddr_un *)given;
    char path[sizeof local->sun_path + 1] = "", room[PATH_MAX];
    if (length <= offsetof(struct sockaddr_un, sun_path) || !local->sun_path[0]) return call(fd, given, length);
    memcpy(path, local->sun_path, length - offsetof(struct sockaddr_un, sun_path));
    const char *mapped = map_path(path, room, 0);
    if (mapped == path) return call(fd, given, length);
    struct sockaddr_un made = {.sun_family = AF_UNIX};
    int directory = -1;
    if (strlen(mapped) < sizeof made.sun_path) strcpy(made.sun_path, mapped);
    else {
        char *slash = strrchr(room, '/');
        *slash = 0;
        /* Not open(): this path is a real one already. */
        directory = (int)syscall(SYS_openat, AT_FDCWD, room, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (directory < 0) return -1;
        snprintf(made.sun_path, sizeof made.sun_path, "/proc/self/fd/%d/%.60s", directory, slash + 1);
    }
    int result = call(fd, (struct sockaddr *)&made, sizeof made), problem = errno;
    if (directory >= 0) close(directory);
    errno = problem;
    return result;
}

/* IPv6 sockets carry the cluster's IPv4 addresses, so they must not be for IPv6 alone. */
static void widen(int fd, int family)
{
    int off = 0;
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
}

int bind(int fd, const struct sockaddr *given, socklen_t length)
{
    uint32_t address;
    if (!pod.active || !given) return real_bind(fd, given, length);
    if (given->sa_family == AF_UNIX) return with_local(real_bind, fd, given, length);
    if (given->sa_family != AF_INET && given->sa_family != AF_INET6) return real_bind(fd, given, length);
    int only = 0;
    socklen_t size = sizeof only;
    if (given->sa_family == AF_INET6) getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &size);
    if (!inet_address(given, &address) || only) {
        errno = EADDRNOTAVAIL; /* pods have no IPv6 */
        return -1;
    }
    if (address != INADDR_ANY && address >> 24 != 127 && address != pod.address && address >> 28 != 0xe) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    struct sockaddr_storage made = to_machine(given, &length);
    int result = real_bind(fd, (struct sockaddr *)&made, length);
    if (!result) remember(fd, address >> 24 == 127);
    return result;
}

/* Let what a pod sends come from its own address. */
static void come_from_pod(int fd, const struct sockaddr *target)
{
    REAL(int, "getsockname", int, struct sockaddr *, socklen_t *);
    struct sockaddr_storage now;
    socklen_t size = sizeof now;
    int type = 0, on = 1;
    socklen_t type_size = sizeof type;
    if (real(fd, (struct sockaddr *)&now, &size) || ((struct sockaddr_in *)&now)->sin_port) return;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size);
    if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    struct sockaddr_storage own = {.ss_family = target->sa_family};
    socklen_t length = target->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    own = to_machine((struct sockaddr *)&own, &length);
    if (!real_bind(fd, (struct sockaddr *)&own, length)) remember(fd, 0);
}

static int inside(const struct sockaddr *given)
{
    uint32_t address;
    return pod.active && given && inet_address(given, &address) &&
           (is_cluster(address) || address >> 24 == 127 || address == INADDR_ANY);
}

int connect(int fd, const struct sockaddr *given, socklen_t length)
{
    if (pod.active && given && given->sa_family == AF_UNIX) return with_local(real_connect, fd, given, length);
    if (!inside(given)) return real_connect(fd, given, length);
    struct sockaddr_storage made = to_machine(given, &length);
    widen(fd, given->sa_family);
    come_from_pod(fd, given);
    return real_connect(fd, (struct sockaddr *)&made, length);
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *given, socklen_t length)
{
    REAL(ssize_t, "sendto", int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    if (!inside(given)) return real(fd, data, size, flags, given, length);
    struct sockaddr_storage made = to_machine(given, &length);
    widen(fd, given->sa_family);
    come_from_pod(fd, given);
    return real(fd, data, size, flags, (struct sockaddr *)&made, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    REAL(ssize_t, "sendmsg", int, const struct msghdr *, int);
    if (!message || !message->msg_namelen || !inside(message->msg_name)) return real(fd, message, flags);
    struct msghdr changed = *message;
    struct sockaddr_storage made = to_machine(message->msg_name, &changed.msg_namelen);
    widen(fd, made.ss_family);
    come_from_pod(fd, message->msg_name);
    changed.msg_name = &made;
    return real(fd, &changed, flags);
}

/* What comes back: the cluster's addresses. */

static void seen_by(int fd, int own, struct sockaddr *address, socklen_t room)
{
    uint32_t value;
    if (!pod.active || !address || room < sizeof(struct sockaddr_in)) return;
    to_cluster(address, room);
    if (own && remembered(fd) && inet_address(address, &value) && value == pod.address) {
        value = htonl(INADDR_LOOPBACK);
        if (address->sa_family == AF_INET) ((struct sockaddr_in *)address)->sin_addr.s_addr = value;
        else memcpy(((struct sockaddr_in6 *)address)->sin6_addr.s6_addr + 12, &value, 4);
    }
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    REAL(int, "getsockname", int, struct sockaddr *, socklen_t *);
    socklen_t room = length ? *length : 0;
    int result = real(fd, address, length);
    if (!result) seen_by(fd, 1, address, room);
    return result;
}

int getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    REAL(int, "getpeername", int, struct sockaddr *, socklen_t *);
    socklen_t room = length ? *length : 0;
    int result = real(fd, address, length);
    if (!result) seen_by(fd, 0, address, room);
    return result;
}

int accept(int fd, struct sockaddr *address, socklen_t *length)
{
    REAL(int, "accept", int, struct sockaddr *, socklen_t *);
    socklen_t room = address && length ? *length : 0;
    int result = real(fd, address, length);
    if (result >= 0) seen_by(result, 0, address, room), remember(result, remembered(fd));
    return result;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    REAL(int, "accept4", int, struct sockaddr *, socklen_t *, int);
    socklen_t room = address && length ? *length : 0;
    int result = real(fd, address, length, flags);
    if (result >= 0) seen_by(result, 0, address, room), remember(result, remembered(fd));
    return result;
}

ssize_t recvfrom(int fd, void *data, size_t size, int flags, struct sockaddr *address, socklen_t *length)
{
    REAL(ssize_t, "recvfrom", int, void *, size_t, int, struct sockaddr *, socklen_t *);
    socklen_t room = address && length ? *length : 0;
    ssize_t result = real(fd, data, size, flags, address, length);
    if (result >= 0 && room && *length) seen_by(fd, 0, address, room);
    return result;
}

ssize_t __recvfrom_chk(int fd, void *data, size_t size, size_t most, int flags, struct sockaddr *address,
                       socklen_t *length)
{
    return recvfrom(fd, data, size > most ? most : size, flags, address, length);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    REAL(ssize_t, "recvmsg", int, struct msghdr *, int);
    socklen_t room = message && message->msg_name ? message->msg_namelen : 0;
    ssize_t result = real(fd, message, flags);
    if (result >= 0 && room && message->msg_namelen) seen_by(fd, 0, message->msg_name, room);
    return result;
}
