/* Names: the pod's own, those of its hosts file, and those that the cluster's name server knows.
 *
 * The C library reads the machine's files and settings by ways that cannot be taken over, so names are looked up
 * here; one that the cluster does not know is the machine's affair.
 */
#include "pod.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <strings.h>
#include <sys/utsname.h>

#define MAX_ADDRESSES 64

static int ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), wanted = strlen(end);
    return length >= wanted && !strcasecmp(name + length - wanted, end);
}

/* Return how many addresses a name has in the cluster; 0 when the cluster does not know it. */
static int look_up(const char *given, uint32_t *found)
{
    char name[256], full[520];
    int count = 0, dots = 0;
    if (strlen(given) >= sizeof name) return 0;
    strcpy(name, given);
    int rooted = *name && name[strlen(name) - 1] == '.';
    if (rooted) name[strlen(name) - 1] = 0;
    if (!strcasecmp(name, "localhost")) return found[0] = INADDR_LOOPBACK, 1;
    for (int each = 0; each < pod.host_count; each++)
        if (!strcasecmp(name, pod.hosts[each].name) && count < MAX_ADDRESSES)
            found[count++] = pod.hosts[each].address;
    if (count) return count;
    for (char *at = name; *at; at++) dots += *at == '.';
    if (ends_with(name, ".cluster.local") || rooted) {
        count = ask_name_server(name, found, MAX_ADDRESSES);
        return count > 0 ? count : 0;
    }
    for (int each = 0; each < pod.searches && dots < 5; each++) {
        snprintf(full, sizeof full, "%s.%s", name, pod.search[each]);
        count = ask_name_server(full, found, MAX_ADDRESSES);
        if (count) return count > 0 ? count : 0;
    }
    return 0;
}

/* Return the first name that the hosts file gives an address, which is its full one. */
static const char *full_name(uint32_t address, const char *otherwise)
{
    for (int each = 0; each < pod.host_count; each++)
        if (pod.hosts[each].address == address) return pod.hosts[each].name;
    return otherwise;
}

static int only_cluster(const char *name)
{
    return ends_with(name, ".cluster.local") || ends_with(name, ".svc") || !strcasecmp(name, pod.hostname);
}

static int is_number(const char *name)
{
    unsigned char room[16];
    return inet_pton(AF_INET, name, room) == 1 || strchr(name, ':') != NULL;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
    REAL(int, "getaddrinfo", const char *, const char *, const struct addrinfo *, struct addrinfo **);
    struct addrinfo wanted = {0};
    if (hints) wanted = *hints;
    if (!pod.active) return real(name, service, hints, result);
    if (!name || !*name || is_number(name) || wanted.ai_flags & AI_NUMERICHOST) {
        /* Pods have IPv4 alone: "any" and "loopback" are then the same in both families. */
        if (!name && wanted.ai_family == AF_UNSPEC) wanted.ai_family = AF_INET;
        return real(name, service, &wanted, result);
    }
    uint32_t found[MAX_ADDRESSES];
    int count = look_up(name, found);
    if (count <= 0) return only_cluster(name) ? EAI_NONAME : real(name, service, hints, result);
    if (wanted.ai_family == AF_INET6 && !(wanted.ai_flags & AI_V4MAPPED)) return EAI_NONAME;
    int canonical = wanted.ai_flags & AI_CANONNAME;
    if (wanted.ai_family != AF_INET6) wanted.ai_family = AF_INET;
    wanted.ai_flags = (wanted.ai_flags | AI_NUMERICHOST) & ~(AI_CANONNAME | AI_ADDRCONFIG);
    struct addrinfo *first = NULL, **last = &first;
    for (int each = 0; each < count; each++) {
        char text[INET_ADDRSTRLEN + 8] = "";
        struct in_addr address = {htonl(found[each])};
        if (wanted.ai_family == AF_INET6) strcpy(text, "::ffff:");
        inet_ntop(AF_INET, &address, text + strlen(text), INET_ADDRSTRLEN);
        int problem = real(text, service, &wanted, last);
        if (problem) {
            if (first) freeaddrinfo(first);
            return problem;
        }
        while (*last) last = &(*last)->ai_next;
    }
    if (canonical && first) first->ai_canonname = strdup(full_name(found[0], name));
    *result = first;
    return 0;
}

int getnameinfo(const struct sockaddr *given, socklen_t length, char *host, socklen_t room, char *service,
                socklen_t service_room, int flags)
{
    REAL(int, "getnameinfo", const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int);
    uint32_t address;
    if (pod.active && given && inet_address(given, &address) && is_cluster(address)) {
        if (address == pod.address && host && !(flags & NI_NUMERICHOST)) {
            int problem = real(given, length, NULL, 0, service, service_room, flags & ~NI_NAMEREQD);
            snprintf(host, room, "%s", full_name(address, pod.hostname));
            return problem;
        }
        if (host && flags & NI_NAMEREQD) return EAI_NONAME;
        flags |= NI_NUMERICHOST;
    }
    return real(given, length, host, room, service, service_room, flags);
}

/* The older interface, which a few programs still use. */

static struct hostent *fill(struct hostent *entry, char *room, size_t size, const char *name, const uint32_t *found,
                            int count)
{
    size_t text = (strlen(name) + 8) & ~(size_t)7, needed = text + ((size_t)count + 2) * sizeof(char *) + 4u * (size_t)count;
    if (needed > size) return NULL;
    strcpy(room, name);
    char **list = (char **)(void *)(room + text);
    uint32_t *values = (uint32_t *)(void *)(list + count + 2);
    for (int each = 0; each < count; each++) {
        values[each] = htonl(found[each]);
        list[each] = (char *)&values[each];
    }
    list[count] = NULL;
    list[count + 1] = NULL;
    *entry = (struct hostent){room, list + count + 1, AF_INET, 4, list};
    return entry;
}

int gethostbyname_r(const char *name, struct hostent *entry, char *room, size_t size, struct hostent **result,
                    int *problem)
{
    REAL(int, "gethostbyname_r", const char *, struct hostent *, char *, size_t, struct hostent **, int *);
    uint32_t found[MAX_ADDRESSES];
    if (!pod.active || is_number(name)) return real(name, entry, room, size, result, problem);
    int count = look_up(name, found);
    if (count <= 0) {
        if (!only_cluster(name)) return real(name, entry, room, size, result, problem);
        *result = NULL, *problem = HOST_NOT_FOUND;
        return 0;
    }
    uintptr_t skew = (uintptr_t)room & 7 ? 8 - ((uintptr_t)room & 7) : 0;
    *result = size > skew ? fill(entry, room + skew, size - skew, name, found, count) : NULL;
    *problem = *result ? 0 : NETDB_INTERNAL;
    return *result ? 0 : ERANGE;
}

int gethostbyname2_r(const char *name, int family, struct hostent *entry, char *room, size_t size,
                     struct hostent **result, int *problem)
{
    REAL(int, "gethostbyname2_r", const char *, int, struct hostent *, char *, size_t, struct hostent **, int *);
    uint32_t found[MAX_ADDRESSES];
    if (!pod.active || is_number(name)) return real(name, family, entry, room, size, result, problem);
    if (family == AF_INET) return gethostbyname_r(name, entry, room, size, result, problem);
    if (look_up(name, found) <= 0 && !only_cluster(name)) return real(name, family, entry, room, size, result, problem);
    *result = NULL, *problem = NO_ADDRESS; /* the cluster has no IPv6 */
    return 0;
}

struct hostent *gethostbyname2(const char *name, int family)
{
    static struct hostent entry;
    static uint64_t room[512];
    struct hostent *result = NULL;
    int problem = gethostbyname2_r(name, family, &entry, (char *)room, sizeof room, &result, &h_errno);
    return problem ? NULL : result;
}

struct hostent *gethostbyname(const char *name)
{
    static struct hostent entry;
    static uint64_t room[512];
    struct hostent *result = NULL;
    return gethostbyname_r(name, &entry, (char *)room, sizeof room, &result, &h_errno) ? NULL : result;
}

int gethostbyaddr_r(const void *address, socklen_t length, int family, struct hostent *entry, char *room, size_t size,
                    struct hostent **result, int *problem)
{
    REAL(int, "gethostbyaddr_r", const void *, socklen_t, int, struct hostent *, char *, size_t, struct hostent **,
         int *);
    uint32_t value;
    if (pod.active && family == AF_INET && length == 4) {
        memcpy(&value, address, 4);
        value = ntohl(value);
        if (value == pod.address || is_cluster(value)) {
            uintptr_t skew = (uintptr_t)room & 7 ? 8 - ((uintptr_t)room & 7) : 0;
            *result = NULL, *problem = HOST_NOT_FOUND;
            if (value == pod.address && size > skew)
                *result = fill(entry, room + skew, size - skew, full_name(value, pod.hostname), &value, 1), *problem = 0;
            return 0;
        }
    }
    return real(address, length, family, entry, room, size, result, problem);
}

int gethostname(char *name, size_t size)
{
    REAL(int, "gethostname", char *, size_t);
    if (!pod.active) return real(name, size);
    if (strlen(pod.hostname) >= size) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(name, pod.hostname);
    return 0;
}

int __gethostname_chk(char *name, size_t size, size_t most)
{
    return gethostname(name, size > most ? most : size);
}

int uname(struct utsname *names)
{
    REAL(int, "uname", struct utsname *);
    int result = real(names);
    if (!result && pod.active) snprintf(names->nodename, sizeof names->nodename, "%.64s", pod.hostname);
    return result;
}

/* A pod has two interfaces, as in a network of its own. */

struct interfaces {
    struct ifaddrs each[2];
    struct sockaddr_in address[2], mask[2];
};

int getifaddrs(struct ifaddrs **result)
{
    REAL(int, "getifaddrs", struct ifaddrs **);
    if (!pod.active) return real(result);
    struct interfaces *made = calloc(1, sizeof *made);
    if (!made) return -1;
    const uint32_t addresses[] = {INADDR_LOOPBACK, pod.address}, masks[] = {0xff000000u, 0xffff0000u};
    static char names[][5] = {"lo", "eth0"};
    for (int each = 0; each < 2; each++) {
        made->address[each] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(addresses[each])}};
        made->mask[each] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(masks[each])}};
        made->each[each] = (struct ifaddrs){
            .ifa_next = each ? NULL : &made->each[1],
            .ifa_name = names[each],
            .ifa_flags = IFF_UP | IFF_RUNNING | (each ? IFF_BROADCAST : IFF_LOOPBACK),
            .ifa_addr = (struct sockaddr *)&made->address[each],
            .ifa_netmask = (struct sockaddr *)&made->mask[each],
        };
    }
    *result = made->each;
    return 0;
}

void freeifaddrs(struct ifaddrs *given)
{
    REAL(void, "freeifaddrs", struct ifaddrs *);
    if (pod.active) free(given);
    else real(given);
}
