// A program of RMM, whose library has a CUDA runtime of its own inside it.
#include <rmm/cuda_device.hpp>

#include <cstdio>
#include <exception>

int main()
{
    try {
        std::printf("devices %d\n", int(rmm::get_num_cuda_devices()));
    } catch (std::exception const &error) {
        std::printf("%s\n", error.what());
    }
    try {
        rmm::cuda_set_device_raii device{rmm::cuda_device_id{0}};
        std::printf("set\n");
    } catch (std::exception const &error) {
        std::printf("%s\n", error.what());
    }
    return 0;
}
