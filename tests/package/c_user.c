/* The installed C header compiles, and the shared library is found when the program runs. */
#include <pagezip.h>
#include <stdio.h>

int main(void) {
  printf("pagezip %s\n", pagezip_version());
  return pagezip_keep_count(10, 0.3) == 3 && pagezip_merge(NULL) == PAGEZIP_INVALID ? 0 : 1;
}
