// The second translation unit of the program in twice.cpp; here the C header comes first.
#include <smp.h>
#include <smp.hpp>

int other();
int other() { return static_cast<int>(smp_version()); }
