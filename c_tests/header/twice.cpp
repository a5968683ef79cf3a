// smp.hpp included twice, and from two translation units of one program (the other is other.cpp): it must not define
// anything twice.
#include <smp.hpp>
#include <smp.hpp>
#include <smp.h>

int other();

int main() { return smp_version() == SMP_VERSION && other() == SMP_VERSION ? 0 : 1; }
