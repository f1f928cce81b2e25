/* Which address of this machine's loopback interface stands for which address of the cluster.
 *
 * 10.244.a.b is 127.octet.a.b and 10.96.a.b is 127.(octet + 1).a.b. Ports below 1024 are moved up where this
 * user may not listen on them. localkube/network/addresses.py says the same to the agent.
 */
#include "pod.h"

static const uint32_t pods = 10u << 24 | 244u << 16, services = 10u << 24 | 96u << 16, low_ports = 1024;

int is_cluster(uint32_t address)
{
    uint32_t network = address & 0xffff0000u;
    return network == pods || network == services;
}

/* The IPv4 address of a socket address, also of one that IPv6 wraps; 0 when it has none. */
int inet_address(const struct sockaddr *given, uint32_t *address)
{
    if (given->sa_family == AF_INET) {
        *address = ntohl(((const struct sockaddr_in *)given)->sin_addr.s_addr);
        return 1;
    }
    if (given->sa_family != AF_INET6) return 0;
    const struct in6_addr *wide = &((const struct sockaddr_in6 *)given)->sin6_addr;
    if (IN6_IS_ADDR_UNSPECIFIED(wide)) *address = INADDR_ANY;
    else if (IN6_IS_ADDR_LOOPBACK(wide)) *address = INADDR_LOOPBACK;
    else if (IN6_IS_ADDR_V4MAPPED(wide)) {
        memcpy(address, wide->s6_addr + 12, 4);
        *address = ntohl(*address);
    } else return 0;
    return 1;
}

static void set(struct sockaddr *given, uint32_t address, uint32_t port)
{
    uint32_t wire = htonl(address);
    if (given->sa_family == AF_INET) {
        ((struct sockaddr_in *)given)->sin_addr.s_addr = wire;
        ((struct sockaddr_in *)given)->sin_port = htons((uint16_t)port);
        return;
    }
    struct sockaddr_in6 *wide = (struct sockaddr_in6 *)given;
    memset(&wide->sin6_addr, 0, 10);
    memset(wide->sin6_addr.s6_addr + 10, 0xff, 2);
    memcpy(wide->sin6_addr.s6_addr + 12, &wire, 4);
    wide->sin6_port = htons((uint16_t)port);
}

struct sockaddr_storage to_machine(const struct sockaddr *given, socklen_t *length)
{
    struct sockaddr_storage made;
    memset(&made, 0, sizeof made);
    if (*length > sizeof made) *length = sizeof made;
    memcpy(&made, given, *length);
    uint32_t address, network;
    if (!inet_address(given, &address)) return made;
    /* A pod's own loopback is its own address: two pods may then use the same port. */
    if (address >> 24 == 127 || address == INADDR_ANY) address = pod.address;
    network = address & 0xffff0000u;
    uint32_t second = network == pods ? pod.octet : network == services ? pod.octet + 1 : 0;
    if (!second) return made;
    /* Both families have the port in the same place. */
    uint32_t port = ntohs(((struct sockaddr_in *)&made)->sin_port);
    if (port && port < low_ports) port += pod.low;
    set((struct sockaddr *)&made, 127u << 24 | second << 16 | (address & 0xffff), port);
    return made;
}

void to_cluster(struct sockaddr *given, socklen_t room)
{
    uint32_t address;
    size_t needed = given->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (room < needed || !inet_address(given, &address) || address >> 24 != 127) return;
    uint32_t second = address >> 16 & 0xff, network = second == pod.octet ? pods : services;
    if (second != pod.octet && second != pod.octet + 1) return;
    uint32_t port = ntohs(((struct sockaddr_in *)given)->sin_port);
    if (pod.low && port >= pod.low && port < pod.low + low_ports) port -= pod.low;
    set(given, network | (address & 0xffff), port);
}
