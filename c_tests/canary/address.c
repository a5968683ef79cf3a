/* A planted fault of the library: its last error is written to a struct that ends before the text does. The
 * AddressSanitizer build must report it, which shows that the library's own writes are watched, not only this file's. */
#include <smp.h>

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    smp_error error = SMP_ERROR_INIT;
    smp_error *cut = (smp_error *)malloc(sizeof *cut / 2u);
    if (cut == NULL) return 0;
    if (smp_pool_destroy(NULL) == SMP_SUCCESS) return 0;
    cut->struct_size = error.struct_size; /* a lie */
    if (smp_last_error(cut) != SMP_SUCCESS) return 0;
    printf("%s\n", cut->text);
    free(cut);
    return 0;
}
