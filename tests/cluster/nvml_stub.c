/* Stands in for NVIDIA's libnvidia-ml.so.1: one GPU, 64 % busy, with 3 of 80 GiB in use. */
#include <stdio.h>

#define GIB (1024ULL * 1024 * 1024)

int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { return "none"; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return *device = "gpu", 0; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { return *minor = 0, 0; }

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    return snprintf(name, length, "NVIDIA Stub (80 GB)") < 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    return snprintf(uuid, length, "GPU-00000000-1111-2222-3333-444444444444") < 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 80 * GIB, memory[1] = 77 * GIB, memory[2] = 3 * GIB;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *percent) {
    return percent[0] = 64, percent[1] = 10, 0;
}
