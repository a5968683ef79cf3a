// A C++ program that uses the installed package; what it does with the library is what consumer.c does.
#include <smp.hpp>

#include "consumer.c"
