/* The pod of this process, read from the file that TRAINYARD_POD names.
 *
 * In plain mode containers are ordinary processes on the machine's own network and file system. This library is
 * loaded before the C library (LD_PRELOAD) and gives them what namespaces would: the pod's address, host
 * name, names, and volumes in their places. It changes what a program sees, and protects nothing.
 */
#include "pod.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

struct pod pod;

static void read_line(char *line)
{
    char word[4][PATH_MAX];
    memset(word, 0, sizeof word);
    int words = sscanf(line, "%15s\t%4095[^\t\n]\t%4095[^\t\n]\t%4095[^\t\n]", word[0], word[1], word[2], word[3]);
    if (words < 2) return;
    if (!strcmp(word[0], "address")) pod.address = ntohl(inet_addr(word[1]));
    if (!strcmp(word[0], "octet")) pod.octet = (uint32_t)atoi(word[1]);
    if (!strcmp(word[0], "low")) pod.low = (uint32_t)atoi(word[1]);
    if (!strcmp(word[0], "dns")) pod.name_server = ntohl(inet_addr(word[1]));
    if (!strcmp(word[0], "hostname")) snprintf(pod.hostname, sizeof pod.hostname, "%.255s", word[1]);
    if (!strcmp(word[0], "search") && pod.searches < 6)
        snprintf(pod.search[pod.searches++], sizeof pod.search[0], "%.255s", word[1]);
    if (!strcmp(word[0], "host") && words == 3 && pod.host_count < MAX_HOSTS) {
        struct host *host = &pod.hosts[pod.host_count++];
        snprintf(host->name, sizeof host->name, "%.255s", word[1]);
        host->address = ntohl(inet_addr(word[2]));
    }
    if (!strcmp(word[0], "path") && words == 4 && pod.path_count < MAX_PATHS) {
        struct path *path = &pod.paths[pod.path_count++];
        path->read_only = !strcmp(word[1], "ro");
        strcpy(path->seen, word[2]);
        strcpy(path->real, word[3]);
        path->seen_length = strlen(path->seen);
        path->real_length = strlen(path->real);
    }
}

/* Become a process of the pod that a file describes; a process that was forked from elsewhere calls it. */
int trainyard_enter(const char *file)
{
    memset(&pod, 0, sizeof pod);
    FILE *settings = fopen(file, "re");
    if (!settings) return -1;
    char *line = malloc(4 * PATH_MAX);
    while (line && fgets(line, 4 * PATH_MAX, settings)) read_line(line);
    free(line);
    fclose(settings);
    pod.active = 1;
    return 0;
}

__attribute__((constructor)) static void enter(void)
{
    const char *file = getenv("TRAINYARD_POD");
    if (!file || !*file) return;
    if (trainyard_enter(file)) {
        fprintf(stderr, "trainyard: the pod's description cannot be read: %s: %s\n", file, strerror(errno));
        _exit(126);
    }
}
