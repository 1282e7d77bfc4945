/* Lists the GPUs that Vulkan finds and computes on the first: values[i] = i * i + 7, read back and compared.
   usage: vulkan_compute [MIB]     MIB: then takes memory of the GPU, in pieces of 64 MiB, and prints how much it got
   Prints one line each; exit code 0, 1 without a GPU, 2 for any failure. */
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vulkan/vulkan.h>

#define COUNT 4096u
#define PIECE (64ull << 20)

/* glslangValidator -V of:
     #version 450
     layout(local_size_x = 64) in;
     layout(std430, binding = 0) buffer Out { uint values[]; };
     void main() { uint i = gl_GlobalInvocationID.x; values[i] = i * i + 7u; } */
static const uint32_t SHADER[] = {
    0x07230203, 0x00010000, 0x0008000b, 0x00000021, 0x00000000, 0x00020011, 0x00000001, 0x0006000b, 0x00000001, 0x4c534c47,
    0x6474732e, 0x3035342e, 0x00000000, 0x0003000e, 0x00000000, 0x00000001, 0x0006000f, 0x00000005, 0x00000004, 0x6e69616d,
    0x00000000, 0x0000000b, 0x00060010, 0x00000004, 0x00000011, 0x00000040, 0x00000001, 0x00000001, 0x00030003, 0x00000002,
    0x000001c2, 0x00040005, 0x00000004, 0x6e69616d, 0x00000000, 0x00030005, 0x00000008, 0x00000069, 0x00080005, 0x0000000b,
    0x475f6c67, 0x61626f6c, 0x766e496c, 0x7461636f, 0x496e6f69, 0x00000044, 0x00030005, 0x00000011, 0x0074754f, 0x00050006,
    0x00000011, 0x00000000, 0x756c6176, 0x00007365, 0x00030005, 0x00000013, 0x00000000, 0x00040047, 0x0000000b, 0x0000000b,
    0x0000001c, 0x00040047, 0x00000010, 0x00000006, 0x00000004, 0x00050048, 0x00000011, 0x00000000, 0x00000023, 0x00000000,
    0x00030047, 0x00000011, 0x00000003, 0x00040047, 0x00000013, 0x00000022, 0x00000000, 0x00040047, 0x00000013, 0x00000021,
    0x00000000, 0x00040047, 0x00000020, 0x0000000b, 0x00000019, 0x00020013, 0x00000002, 0x00030021, 0x00000003, 0x00000002,
    0x00040015, 0x00000006, 0x00000020, 0x00000000, 0x00040020, 0x00000007, 0x00000007, 0x00000006, 0x00040017, 0x00000009,
    0x00000006, 0x00000003, 0x00040020, 0x0000000a, 0x00000001, 0x00000009, 0x0004003b, 0x0000000a, 0x0000000b, 0x00000001,
    0x0004002b, 0x00000006, 0x0000000c, 0x00000000, 0x00040020, 0x0000000d, 0x00000001, 0x00000006, 0x0003001d, 0x00000010,
    0x00000006, 0x0003001e, 0x00000011, 0x00000010, 0x00040020, 0x00000012, 0x00000002, 0x00000011, 0x0004003b, 0x00000012,
    0x00000013, 0x00000002, 0x00040015, 0x00000014, 0x00000020, 0x00000001, 0x0004002b, 0x00000014, 0x00000015, 0x00000000,
    0x0004002b, 0x00000006, 0x0000001a, 0x00000007, 0x00040020, 0x0000001c, 0x00000002, 0x00000006, 0x0004002b, 0x00000006,
    0x0000001e, 0x00000040, 0x0004002b, 0x00000006, 0x0000001f, 0x00000001, 0x0006002c, 0x00000009, 0x00000020, 0x0000001e,
    0x0000001f, 0x0000001f, 0x00050036, 0x00000002, 0x00000004, 0x00000000, 0x00000003, 0x000200f8, 0x00000005, 0x0004003b,
    0x00000007, 0x00000008, 0x00000007, 0x00050041, 0x0000000d, 0x0000000e, 0x0000000b, 0x0000000c, 0x0004003d, 0x00000006,
    0x0000000f, 0x0000000e, 0x0003003e, 0x00000008, 0x0000000f, 0x0004003d, 0x00000006, 0x00000016, 0x00000008, 0x0004003d,
    0x00000006, 0x00000017, 0x00000008, 0x0004003d, 0x00000006, 0x00000018, 0x00000008, 0x00050084, 0x00000006, 0x00000019,
    0x00000017, 0x00000018, 0x00050080, 0x00000006, 0x0000001b, 0x00000019, 0x0000001a, 0x00060041, 0x0000001c, 0x0000001d,
    0x00000013, 0x00000015, 0x00000016, 0x0003003e, 0x0000001d, 0x0000001b, 0x000100fd, 0x00010038
};

static PFN_vkGetInstanceProcAddr next;

#define FUNCTION(owner, name) PFN_##name name = (PFN_##name) next (owner, #name)

static void check (VkResult result, const char *what)
{
    if (result == VK_SUCCESS)
        return;
    fprintf (stderr, "%s: VkResult %d\n", what, result);
    exit (2);
}

static VkPhysicalDevice choose (VkInstance instance)
{
    FUNCTION (instance, vkEnumeratePhysicalDevices);
    FUNCTION (instance, vkGetPhysicalDeviceProperties);
    VkPhysicalDevice devices[16];
    uint32_t count = 16;
    VkResult result = vkEnumeratePhysicalDevices (instance, &count, devices);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE)
        count = 0;
    for (uint32_t i = 0; i < count; i++) {
        VkPhysicalDeviceProperties properties;
        vkGetPhysicalDeviceProperties (devices[i], &properties);
        printf ("gpu %s\n", properties.deviceName);
    }
    if (count == 0) {
        fprintf (stderr, "no GPU\n");
        exit (1);
    }
    return devices[0];
}

static uint32_t memory_type (VkInstance instance, VkPhysicalDevice gpu, uint32_t allowed, VkMemoryPropertyFlags wanted)
{
    FUNCTION (instance, vkGetPhysicalDeviceMemoryProperties);
    VkPhysicalDeviceMemoryProperties properties;
    vkGetPhysicalDeviceMemoryProperties (gpu, &properties);
    for (uint32_t i = 0; i < properties.memoryTypeCount; i++)
        if ((allowed >> i & 1) && (properties.memoryTypes[i].propertyFlags & wanted) == wanted)
            return i;
    fprintf (stderr, "no memory of that type\n");
    exit (2);
}

static void compute (VkInstance instance, VkPhysicalDevice gpu, VkDevice device, uint32_t family)
{
    FUNCTION (instance, vkGetDeviceQueue);
    FUNCTION (instance, vkCreateBuffer);
    FUNCTION (instance, vkGetBufferMemoryRequirements);
    FUNCTION (instance, vkAllocateMemory);
    FUNCTION (instance, vkBindBufferMemory);
    FUNCTION (instance, vkCreateShaderModule);
    FUNCTION (instance, vkCreateDescriptorSetLayout);
    FUNCTION (instance, vkCreatePipelineLayout);
    FUNCTION (instance, vkCreateComputePipelines);
    FUNCTION (instance, vkCreateDescriptorPool);
    FUNCTION (instance, vkAllocateDescriptorSets);
    FUNCTION (instance, vkUpdateDescriptorSets);
    FUNCTION (instance, vkCreateCommandPool);
    FUNCTION (instance, vkAllocateCommandBuffers);
    FUNCTION (instance, vkBeginCommandBuffer);
    FUNCTION (instance, vkCmdBindPipeline);
    FUNCTION (instance, vkCmdBindDescriptorSets);
    FUNCTION (instance, vkCmdDispatch);
    FUNCTION (instance, vkEndCommandBuffer);
    FUNCTION (instance, vkQueueSubmit);
    FUNCTION (instance, vkQueueWaitIdle);
    FUNCTION (instance, vkMapMemory);

    VkQueue queue;
    vkGetDeviceQueue (device, family, 0, &queue);

    VkBuffer buffer;
    VkDeviceMemory memory;
    VkMemoryRequirements needs;
    check (vkCreateBuffer (device,
                           &(VkBufferCreateInfo) { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                                   .size = COUNT * 4,
                                                   .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT },
                           NULL, &buffer),
           "vkCreateBuffer");
    vkGetBufferMemoryRequirements (device, buffer, &needs);
    VkMemoryPropertyFlags wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    check (
        vkAllocateMemory (device,
                          &(VkMemoryAllocateInfo) { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                                    .allocationSize = needs.size,
                                                    .memoryTypeIndex = memory_type (instance, gpu, needs.memoryTypeBits, wanted) },
                          NULL, &memory),
        "vkAllocateMemory");
    check (vkBindBufferMemory (device, buffer, memory, 0), "vkBindBufferMemory");

    VkShaderModule shader;
    check (vkCreateShaderModule (device,
                                 &(VkShaderModuleCreateInfo) { .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                                               .codeSize = sizeof SHADER,
                                                               .pCode = SHADER },
                                 NULL, &shader),
           "vkCreateShaderModule");
    VkDescriptorSetLayoutBinding binding = { .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                             .descriptorCount = 1,
                                             .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT };
    VkDescriptorSetLayout layout;
    check (vkCreateDescriptorSetLayout (
               device,
               &(VkDescriptorSetLayoutCreateInfo) {
                   .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 1, .pBindings = &binding },
               NULL, &layout),
           "vkCreateDescriptorSetLayout");
    VkPipelineLayout pipeline_layout;
    check (vkCreatePipelineLayout (device,
                                   &(VkPipelineLayoutCreateInfo) { .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                                                   .setLayoutCount = 1,
                                                                   .pSetLayouts = &layout },
                                   NULL, &pipeline_layout),
           "vkCreatePipelineLayout");
    VkPipeline pipeline;
    check (vkCreateComputePipelines (
               device, VK_NULL_HANDLE, 1,
               &(VkComputePipelineCreateInfo) { .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                                .stage = { .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                           .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                           .module = shader,
                                                           .pName = "main" },
                                                .layout = pipeline_layout },
               NULL, &pipeline),
           "vkCreateComputePipelines");

    VkDescriptorPoolSize size = { .type = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .descriptorCount = 1 };
    VkDescriptorPool descriptors;
    check (vkCreateDescriptorPool (
               device,
               &(VkDescriptorPoolCreateInfo) {
                   .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1, .poolSizeCount = 1, .pPoolSizes = &size },
               NULL, &descriptors),
           "vkCreateDescriptorPool");
    VkDescriptorSet set;
    check (vkAllocateDescriptorSets (device,
                                     &(VkDescriptorSetAllocateInfo) { .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                                                      .descriptorPool = descriptors,
                                                                      .descriptorSetCount = 1,
                                                                      .pSetLayouts = &layout },
                                     &set),
           "vkAllocateDescriptorSets");
    VkDescriptorBufferInfo whole = { .buffer = buffer, .range = VK_WHOLE_SIZE };
    vkUpdateDescriptorSets (device, 1,
                            &(VkWriteDescriptorSet) { .sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                                      .dstSet = set,
                                                      .descriptorCount = 1,
                                                      .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                      .pBufferInfo = &whole },
                            0, NULL);

    VkCommandPool pool;
    check (vkCreateCommandPool (
               device,
               &(VkCommandPoolCreateInfo) { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = family }, NULL,
               &pool),
           "vkCreateCommandPool");
    VkCommandBuffer commands;
    check (vkAllocateCommandBuffers (device,
                                     &(VkCommandBufferAllocateInfo) { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                                      .commandPool = pool,
                                                                      .commandBufferCount = 1 },
                                     &commands),
           "vkAllocateCommandBuffers");
    check (vkBeginCommandBuffer (commands, &(VkCommandBufferBeginInfo) { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO }),
           "vkBeginCommandBuffer");
    vkCmdBindPipeline (commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdBindDescriptorSets (commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_layout, 0, 1, &set, 0, NULL);
    vkCmdDispatch (commands, COUNT / 64, 1, 1);
    check (vkEndCommandBuffer (commands), "vkEndCommandBuffer");
    check (vkQueueSubmit (
               queue, 1,
               &(VkSubmitInfo) { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands },
               VK_NULL_HANDLE),
           "vkQueueSubmit");
    check (vkQueueWaitIdle (queue), "vkQueueWaitIdle");

    void *mapped;
    check (vkMapMemory (device, memory, 0, VK_WHOLE_SIZE, 0, &mapped), "vkMapMemory");
    const uint32_t *values = mapped;
    for (uint32_t i = 0; i < COUNT; i++)
        if (values[i] != i * i + 7) {
            fprintf (stderr, "value %u is %u\n", i, values[i]);
            exit (2);
        }
    printf ("computed\n");
}

static void take (VkInstance instance, VkPhysicalDevice gpu, VkDevice device, unsigned long mib)
{
    FUNCTION (instance, vkAllocateMemory);
    VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .allocationSize = PIECE,
        .memoryTypeIndex = memory_type (instance, gpu, ~0u, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT),
    };
    uint64_t got = 0;
    VkResult result = VK_SUCCESS;
    while (got < (uint64_t) mib << 20) {
        VkDeviceMemory memory;
        result = vkAllocateMemory (device, &info, NULL, &memory);
        if (result != VK_SUCCESS)
            break;
        got += PIECE;
    }
    printf ("took %llu result %d\n", (unsigned long long) (got >> 20), result);
}

int main (int argc, char **argv)
{
    void *library = dlopen ("libvulkan.so.1", RTLD_NOW);
    next = library ? (PFN_vkGetInstanceProcAddr) dlsym (library, "vkGetInstanceProcAddr") : NULL;
    if (next == NULL) {
        fprintf (stderr, "no loader: %s\n", dlerror ());
        return 2;
    }
    FUNCTION (NULL, vkCreateInstance);
    VkInstance instance;
    VkApplicationInfo about = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_0 };
    VkResult result = vkCreateInstance (
        &(VkInstanceCreateInfo) { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &about }, NULL, &instance);
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER) {
        fprintf (stderr, "no driver\n");
        return 1;
    }
    check (result, "vkCreateInstance");
    VkPhysicalDevice gpu = choose (instance);

    FUNCTION (instance, vkGetPhysicalDeviceQueueFamilyProperties);
    FUNCTION (instance, vkCreateDevice);
    VkQueueFamilyProperties families[16];
    uint32_t count = 16, family = 0;
    vkGetPhysicalDeviceQueueFamilyProperties (gpu, &count, families);
    while (family < count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT))
        family++;
    float priority = 1;
    VkDeviceQueueCreateInfo queue = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                      .queueFamilyIndex = family,
                                      .queueCount = 1,
                                      .pQueuePriorities = &priority };
    VkDevice device;
    check (vkCreateDevice (gpu,
                           &(VkDeviceCreateInfo) { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                                   .queueCreateInfoCount = 1,
                                                   .pQueueCreateInfos = &queue },
                           NULL, &device),
           "vkCreateDevice");
    compute (instance, gpu, device, family);
    if (argc > 1)
        take (instance, gpu, device, strtoul (argv[1], NULL, 10));
    return 0;
}
