/* Ask the cluster's name server for a name's addresses: one question, one datagram, IPv4. */
#include "pod.h"

#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { header = 12, datagram = 4096, patience_ms = 2000, tries = 2 };

static int put_name(unsigned char *at, const char *name)
{
    int used = 0;
    while (*name) {
        size_t label = strcspn(name, ".");
        if (!label || label > 63 || used + label > 250) return -1;
        at[used++] = (unsigned char)label;
        memcpy(at + used, name, label);
        used += (int)label;
        name += label + (name[label] == '.');
    }
    at[used++] = 0;
    return used;
}

static int skip_name(const unsigned char *data, int at, int size)
{
    while (at < size && data[at] && data[at] < 0xc0) at += data[at] + 1;
    return at + (at < size && data[at] >= 0xc0 ? 2 : 1);
}

static int read_addresses(const unsigned char *data, int size, uint32_t *found, int most)
{
    if (size < header || (data[3] & 15)) return 0;
    int answers = data[6] << 8 | data[7], at = skip_name(data, header, size) + 4, count = 0;
    while (answers-- > 0 && count < most) {
        at = skip_name(data, at, size);
        if (at + 10 > size) break;
        int type = data[at] << 8 | data[at + 1], length = data[at + 8] << 8 | data[at + 9];
        at += 10;
        if (at + length > size) break;
        if (type == 1 && length == 4) {
            memcpy(&found[count], data + at, 4);
            found[count] = ntohl(found[count]);
            count++;
        }
        at += length;
    }
    return count;
}

int ask_name_server(const char *name, uint32_t *found, int most)
{
    unsigned char question[512] = {0}, answer[datagram];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint16_t identity = (uint16_t)(now.tv_nsec ^ getpid());
    question[0] = (unsigned char)(identity >> 8), question[1] = (unsigned char)identity;
    question[2] = 1, question[5] = 1; /* recursion desired, one question */
    int used = put_name(question + header, name);
    if (used < 0) return 0;
    question[header + used + 1] = 1, question[header + used + 3] = 1; /* type A, class IN */
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(53)};
    server.sin_addr.s_addr = htonl(pod.name_server);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), count = -1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof server)) goto done;
    for (int each = 0; each < tries && count < 0; each++) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (send(fd, question, (size_t)(header + used + 4), 0) < 0) break;
        while (count < 0 && poll(&ready, 1, patience_ms) > 0) {
            ssize_t size = recv(fd, answer, sizeof answer, 0);
            if (size < 0) break;
            if (size >= header && answer[0] == question[0] && answer[1] == question[1])
                count = read_addresses(answer, (int)size, found, most);
        }
    }
done:
    if (fd >= 0) close(fd);
    return count;
}
