//! Functions that are not implemented: each is found, by its name and by `cuGetProcAddress`, and answers NOT_SUPPORTED.

macro_rules! stubs {
    ($($name:literal $since:literal $symbol:ident $(| $twin:ident)?)*) => {
        entries! {
            $($name $since $symbol $(| $twin)? => (c) {
                // Arguments are not looked at; the C calling convention lets a function take fewer than it is given.
                let _ = c;
                Err($crate::code::NOT_SUPPORTED)
            })*
        }
    };
}

stubs! {
    "cuArray3DCreate" 2000 cuArray3DCreate
    "cuArray3DCreate" 3020 cuArray3DCreate_v2
    "cuArray3DGetDescriptor" 2000 cuArray3DGetDescriptor
    "cuArray3DGetDescriptor" 3020 cuArray3DGetDescriptor_v2
    "cuArrayCreate" 2000 cuArrayCreate
    "cuArrayCreate" 3020 cuArrayCreate_v2
    "cuArrayDestroy" 2000 cuArrayDestroy
    "cuArrayGetDescriptor" 2000 cuArrayGetDescriptor
    "cuArrayGetDescriptor" 3020 cuArrayGetDescriptor_v2
    "cuArrayGetMemoryRequirements" 11060 cuArrayGetMemoryRequirements
    "cuArrayGetPlane" 11020 cuArrayGetPlane
    "cuArrayGetSparseProperties" 11010 cuArrayGetSparseProperties
    "cuCheckpointOperationComplete" 13040 cuCheckpointOperationComplete
    "cuCheckpointProcessCheckpoint" 12080 cuCheckpointProcessCheckpoint
    "cuCheckpointProcessGetRestoreThreadId" 12080 cuCheckpointProcessGetRestoreThreadId
    "cuCheckpointProcessGetState" 12080 cuCheckpointProcessGetState
    "cuCheckpointProcessLock" 12080 cuCheckpointProcessLock
    "cuCheckpointProcessRestore" 12080 cuCheckpointProcessRestore
    "cuCheckpointProcessUnlock" 12080 cuCheckpointProcessUnlock
    "cuCoredumpDeregisterCompleteCallback" 13020 cuCoredumpDeregisterCompleteCallback
    "cuCoredumpDeregisterStartCallback" 13020 cuCoredumpDeregisterStartCallback
    "cuCoredumpGetAttribute" 12010 cuCoredumpGetAttribute
    "cuCoredumpGetAttributeGlobal" 12010 cuCoredumpGetAttributeGlobal
    "cuCoredumpRegisterCompleteCallback" 13020 cuCoredumpRegisterCompleteCallback
    "cuCoredumpRegisterStartCallback" 13020 cuCoredumpRegisterStartCallback
    "cuCoredumpSetAttribute" 12010 cuCoredumpSetAttribute
    "cuCoredumpSetAttributeGlobal" 12010 cuCoredumpSetAttributeGlobal
    "cuCtxCreate" 2000 cuCtxCreate
    "cuCtxDestroy" 2000 cuCtxDestroy
    "cuCtxFromGreenCtx" 12040 cuCtxFromGreenCtx
    "cuCtxGetDevResource" 12040 cuCtxGetDevResource
    "cuCtxGetExecAffinity" 11040 cuCtxGetExecAffinity
    "cuCtxGetSharedMemConfig" 4020 cuCtxGetSharedMemConfig
    "cuCtxPopCurrent" 2000 cuCtxPopCurrent
    "cuCtxPushCurrent" 2000 cuCtxPushCurrent
    "cuCtxResetPersistingL2Cache" 11000 cuCtxResetPersistingL2Cache
    "cuCtxSetSharedMemConfig" 4020 cuCtxSetSharedMemConfig
    "cuDestroyExternalMemory" 10000 cuDestroyExternalMemory
    "cuDestroyExternalSemaphore" 10000 cuDestroyExternalSemaphore
    "cuDevResourceGenerateDesc" 12040 cuDevResourceGenerateDesc
    "cuDevSmResourceSplit" 13010 cuDevSmResourceSplit
    "cuDevSmResourceSplitByCount" 12040 cuDevSmResourceSplitByCount
    "cuDeviceGetCliqueCount" 13040 cuDeviceGetCliqueCount
    "cuDeviceGetCliqueInfo" 13040 cuDeviceGetCliqueInfo
    "cuDeviceGetDevResource" 12040 cuDeviceGetDevResource
    "cuDeviceGetExecAffinitySupport" 11040 cuDeviceGetExecAffinitySupport
    "cuDeviceGetFabricClusterUuid" 13040 cuDeviceGetFabricClusterUuid
    "cuDeviceGetHostAtomicCapabilities" 13000 cuDeviceGetHostAtomicCapabilities
    "cuDeviceGetLuid" 10000 cuDeviceGetLuid
    "cuDeviceGetNvSciSyncAttributes" 10020 cuDeviceGetNvSciSyncAttributes
    "cuDeviceGetP2PAtomicCapabilities" 13000 cuDeviceGetP2PAtomicCapabilities
    "cuDeviceGetProperties" 2000 cuDeviceGetProperties
    "cuDeviceGetTexture1DLinearMaxWidth" 11010 cuDeviceGetTexture1DLinearMaxWidth
    "cuDeviceRegisterAsyncNotification" 12040 cuDeviceRegisterAsyncNotification
    "cuDeviceTotalMem" 2000 cuDeviceTotalMem
    "cuDeviceUnregisterAsyncNotification" 12040 cuDeviceUnregisterAsyncNotification
    "cuEGLStreamConsumerAcquireFrame" 7000 cuEGLStreamConsumerAcquireFrame
    "cuEGLStreamConsumerConnect" 7000 cuEGLStreamConsumerConnect
    "cuEGLStreamConsumerConnectWithFlags" 8000 cuEGLStreamConsumerConnectWithFlags
    "cuEGLStreamConsumerDisconnect" 7000 cuEGLStreamConsumerDisconnect
    "cuEGLStreamConsumerReleaseFrame" 7000 cuEGLStreamConsumerReleaseFrame
    "cuEGLStreamProducerConnect" 7000 cuEGLStreamProducerConnect
    "cuEGLStreamProducerDisconnect" 7000 cuEGLStreamProducerDisconnect
    "cuEGLStreamProducerPresentFrame" 7000 cuEGLStreamProducerPresentFrame
    "cuEGLStreamProducerReturnFrame" 7000 cuEGLStreamProducerReturnFrame
    "cuEventCreateFromEGLSync" 9000 cuEventCreateFromEGLSync
    "cuEventDestroy" 2000 cuEventDestroy
    "cuExternalMemoryGetMappedBuffer" 10000 cuExternalMemoryGetMappedBuffer
    "cuExternalMemoryGetMappedMipmappedArray" 10000 cuExternalMemoryGetMappedMipmappedArray
    "cuFabricCpyBatchAsync" 13050 cuFabricCpyBatchAsync | cuFabricCpyBatchAsync_ptsz
    "cuFlushGPUDirectRDMAWrites" 11030 cuFlushGPUDirectRDMAWrites
    "cuFuncGetName" 12030 cuFuncGetName
    "cuFuncGetParamCount" 13020 cuFuncGetParamCount
    "cuFuncGetParamInfo" 12040 cuFuncGetParamInfo
    "cuFuncIsLoaded" 12040 cuFuncIsLoaded
    "cuFuncLoad" 12040 cuFuncLoad
    "cuFuncSetBlockShape" 2000 cuFuncSetBlockShape
    "cuFuncSetSharedMemConfig" 4020 cuFuncSetSharedMemConfig
    "cuFuncSetSharedSize" 2000 cuFuncSetSharedSize
    "cuGLCtxCreate" 2000 cuGLCtxCreate
    "cuGLCtxCreate" 3020 cuGLCtxCreate_v2
    "cuGLGetDevices" 4010 cuGLGetDevices
    "cuGLGetDevices" 6050 cuGLGetDevices_v2
    "cuGLInit" 2000 cuGLInit
    "cuGLMapBufferObject" 2000 cuGLMapBufferObject
    "cuGLMapBufferObject" 3020 cuGLMapBufferObject_v2 | cuGLMapBufferObject_v2_ptds
    "cuGLMapBufferObjectAsync" 2030 cuGLMapBufferObjectAsync
    "cuGLMapBufferObjectAsync" 3020 cuGLMapBufferObjectAsync_v2 | cuGLMapBufferObjectAsync_v2_ptsz
    "cuGLRegisterBufferObject" 2000 cuGLRegisterBufferObject
    "cuGLSetBufferObjectMapFlags" 2030 cuGLSetBufferObjectMapFlags
    "cuGLUnmapBufferObject" 2000 cuGLUnmapBufferObject
    "cuGLUnmapBufferObjectAsync" 2030 cuGLUnmapBufferObjectAsync
    "cuGLUnregisterBufferObject" 2000 cuGLUnregisterBufferObject
    "cuGetExportTable" 3000 cuGetExportTable
    "cuGraphAddBatchMemOpNode" 11070 cuGraphAddBatchMemOpNode
    "cuGraphAddChildGraphNode" 10000 cuGraphAddChildGraphNode
    "cuGraphAddDependencies" 10000 cuGraphAddDependencies
    "cuGraphAddDependencies" 12030 cuGraphAddDependencies_v2
    "cuGraphAddEmptyNode" 10000 cuGraphAddEmptyNode
    "cuGraphAddEventRecordNode" 11010 cuGraphAddEventRecordNode
    "cuGraphAddEventWaitNode" 11010 cuGraphAddEventWaitNode
    "cuGraphAddExternalSemaphoresSignalNode" 11020 cuGraphAddExternalSemaphoresSignalNode
    "cuGraphAddExternalSemaphoresWaitNode" 11020 cuGraphAddExternalSemaphoresWaitNode
    "cuGraphAddHostNode" 10000 cuGraphAddHostNode
    "cuGraphAddKernelNode" 10000 cuGraphAddKernelNode
    "cuGraphAddKernelNode" 12000 cuGraphAddKernelNode_v2
    "cuGraphAddMemAllocNode" 11040 cuGraphAddMemAllocNode
    "cuGraphAddMemFreeNode" 11040 cuGraphAddMemFreeNode
    "cuGraphAddMemcpyNode" 10000 cuGraphAddMemcpyNode
    "cuGraphAddMemsetNode" 10000 cuGraphAddMemsetNode
    "cuGraphAddNode" 12020 cuGraphAddNode
    "cuGraphAddNode" 12030 cuGraphAddNode_v2
    "cuGraphAddNode" 13040 cuGraphAddNode_v3
    "cuGraphBatchMemOpNodeGetParams" 11070 cuGraphBatchMemOpNodeGetParams
    "cuGraphBatchMemOpNodeSetParams" 11070 cuGraphBatchMemOpNodeSetParams
    "cuGraphChildGraphNodeGetGraph" 10000 cuGraphChildGraphNodeGetGraph
    "cuGraphClone" 10000 cuGraphClone
    "cuGraphConditionalHandleCreate" 12030 cuGraphConditionalHandleCreate
    "cuGraphDebugDotPrint" 11030 cuGraphDebugDotPrint
    "cuGraphDestroyNode" 10000 cuGraphDestroyNode
    "cuGraphEventRecordNodeGetEvent" 11010 cuGraphEventRecordNodeGetEvent
    "cuGraphEventRecordNodeSetEvent" 11010 cuGraphEventRecordNodeSetEvent
    "cuGraphEventWaitNodeGetEvent" 11010 cuGraphEventWaitNodeGetEvent
    "cuGraphEventWaitNodeSetEvent" 11010 cuGraphEventWaitNodeSetEvent
    "cuGraphExecBatchMemOpNodeSetParams" 11070 cuGraphExecBatchMemOpNodeSetParams
    "cuGraphExecChildGraphNodeSetParams" 11010 cuGraphExecChildGraphNodeSetParams
    "cuGraphExecEventRecordNodeSetEvent" 11010 cuGraphExecEventRecordNodeSetEvent
    "cuGraphExecEventWaitNodeSetEvent" 11010 cuGraphExecEventWaitNodeSetEvent
    "cuGraphExecExternalSemaphoresSignalNodeSetParams" 11020 cuGraphExecExternalSemaphoresSignalNodeSetParams
    "cuGraphExecExternalSemaphoresWaitNodeSetParams" 11020 cuGraphExecExternalSemaphoresWaitNodeSetParams
    "cuGraphExecGetId" 13010 cuGraphExecGetId
    "cuGraphExecHostNodeSetParams" 10020 cuGraphExecHostNodeSetParams
    "cuGraphExecKernelNodeSetParams" 10010 cuGraphExecKernelNodeSetParams
    "cuGraphExecKernelNodeSetParams" 12000 cuGraphExecKernelNodeSetParams_v2
    "cuGraphExecMemcpyNodeSetParams" 10020 cuGraphExecMemcpyNodeSetParams
    "cuGraphExecMemsetNodeSetParams" 10020 cuGraphExecMemsetNodeSetParams
    "cuGraphExecNodeSetParams" 12020 cuGraphExecNodeSetParams
    "cuGraphExecUpdate" 10020 cuGraphExecUpdate
    "cuGraphExecUpdate" 12000 cuGraphExecUpdate_v2
    "cuGraphExternalSemaphoresSignalNodeGetParams" 11020 cuGraphExternalSemaphoresSignalNodeGetParams
    "cuGraphExternalSemaphoresSignalNodeSetParams" 11020 cuGraphExternalSemaphoresSignalNodeSetParams
    "cuGraphExternalSemaphoresWaitNodeGetParams" 11020 cuGraphExternalSemaphoresWaitNodeGetParams
    "cuGraphExternalSemaphoresWaitNodeSetParams" 11020 cuGraphExternalSemaphoresWaitNodeSetParams
    "cuGraphGetEdges" 10000 cuGraphGetEdges
    "cuGraphGetEdges" 12030 cuGraphGetEdges_v2
    "cuGraphHostNodeGetParams" 10000 cuGraphHostNodeGetParams
    "cuGraphHostNodeSetParams" 10000 cuGraphHostNodeSetParams
    "cuGraphKernelNodeCopyAttributes" 11000 cuGraphKernelNodeCopyAttributes
    "cuGraphKernelNodeGetAttribute" 11000 cuGraphKernelNodeGetAttribute
    "cuGraphKernelNodeGetParams" 10000 cuGraphKernelNodeGetParams
    "cuGraphKernelNodeGetParams" 12000 cuGraphKernelNodeGetParams_v2
    "cuGraphKernelNodeSetAttribute" 11000 cuGraphKernelNodeSetAttribute
    "cuGraphKernelNodeSetParams" 10000 cuGraphKernelNodeSetParams
    "cuGraphKernelNodeSetParams" 12000 cuGraphKernelNodeSetParams_v2
    "cuGraphMemAllocNodeGetParams" 11040 cuGraphMemAllocNodeGetParams
    "cuGraphMemFreeNodeGetParams" 11040 cuGraphMemFreeNodeGetParams
    "cuGraphMemcpyNodeGetParams" 10000 cuGraphMemcpyNodeGetParams
    "cuGraphMemcpyNodeSetParams" 10000 cuGraphMemcpyNodeSetParams
    "cuGraphMemsetNodeGetParams" 10000 cuGraphMemsetNodeGetParams
    "cuGraphMemsetNodeSetParams" 10000 cuGraphMemsetNodeSetParams
    "cuGraphNodeFindInClone" 10000 cuGraphNodeFindInClone
    "cuGraphNodeGetContainingGraph" 13010 cuGraphNodeGetContainingGraph
    "cuGraphNodeGetDependencies" 12030 cuGraphNodeGetDependencies_v2
    "cuGraphNodeGetDependentNodes" 10000 cuGraphNodeGetDependentNodes
    "cuGraphNodeGetDependentNodes" 12030 cuGraphNodeGetDependentNodes_v2
    "cuGraphNodeGetEnabled" 11060 cuGraphNodeGetEnabled
    "cuGraphNodeGetLocalId" 13010 cuGraphNodeGetLocalId
    "cuGraphNodeGetParams" 13020 cuGraphNodeGetParams
    "cuGraphNodeGetToolsId" 13010 cuGraphNodeGetToolsId
    "cuGraphNodeSetEnabled" 11060 cuGraphNodeSetEnabled
    "cuGraphNodeSetParams" 12020 cuGraphNodeSetParams
    "cuGraphNodeSetParams" 13040 cuGraphNodeSetParams_v2
    "cuGraphRemoveDependencies" 10000 cuGraphRemoveDependencies
    "cuGraphRemoveDependencies" 12030 cuGraphRemoveDependencies_v2
    "cuGraphicsEGLRegisterImage" 7000 cuGraphicsEGLRegisterImage
    "cuGraphicsGLRegisterBuffer" 3000 cuGraphicsGLRegisterBuffer
    "cuGraphicsGLRegisterImage" 3000 cuGraphicsGLRegisterImage
    "cuGraphicsMapResources" 3000 cuGraphicsMapResources | cuGraphicsMapResources_ptsz
    "cuGraphicsResourceGetMappedEglFrame" 7000 cuGraphicsResourceGetMappedEglFrame
    "cuGraphicsResourceGetMappedMipmappedArray" 5000 cuGraphicsResourceGetMappedMipmappedArray
    "cuGraphicsResourceGetMappedPointer" 3000 cuGraphicsResourceGetMappedPointer
    "cuGraphicsResourceGetMappedPointer" 3020 cuGraphicsResourceGetMappedPointer_v2
    "cuGraphicsResourceSetMapFlags" 3000 cuGraphicsResourceSetMapFlags
    "cuGraphicsResourceSetMapFlags" 6050 cuGraphicsResourceSetMapFlags_v2
    "cuGraphicsSubResourceGetMappedArray" 3000 cuGraphicsSubResourceGetMappedArray
    "cuGraphicsUnmapResources" 3000 cuGraphicsUnmapResources | cuGraphicsUnmapResources_ptsz
    "cuGraphicsUnregisterResource" 3000 cuGraphicsUnregisterResource
    "cuGraphicsVDPAURegisterOutputSurface" 3010 cuGraphicsVDPAURegisterOutputSurface
    "cuGraphicsVDPAURegisterVideoSurface" 3010 cuGraphicsVDPAURegisterVideoSurface
    "cuGreenCtxCreate" 12040 cuGreenCtxCreate
    "cuGreenCtxDestroy" 12040 cuGreenCtxDestroy
    "cuGreenCtxGetDevResource" 12040 cuGreenCtxGetDevResource
    "cuGreenCtxGetId" 12090 cuGreenCtxGetId
    "cuGreenCtxRecordEvent" 12040 cuGreenCtxRecordEvent
    "cuGreenCtxStreamCreate" 12050 cuGreenCtxStreamCreate
    "cuGreenCtxWaitEvent" 12040 cuGreenCtxWaitEvent
    "cuImportExternalMemory" 10000 cuImportExternalMemory
    "cuImportExternalSemaphore" 10000 cuImportExternalSemaphore
    "cuIpcCloseMemHandle" 4010 cuIpcCloseMemHandle
    "cuIpcGetEventHandle" 4010 cuIpcGetEventHandle
    "cuIpcGetMemHandle" 4010 cuIpcGetMemHandle
    "cuIpcOpenEventHandle" 4010 cuIpcOpenEventHandle
    "cuIpcOpenMemHandle" 4010 cuIpcOpenMemHandle
    "cuIpcOpenMemHandle" 11000 cuIpcOpenMemHandle_v2
    "cuKernelGetName" 12030 cuKernelGetName
    "cuKernelGetParamCount" 13020 cuKernelGetParamCount
    "cuKernelGetParamInfo" 12040 cuKernelGetParamInfo
    "cuLaunch" 2000 cuLaunch
    "cuLaunchCooperativeKernelMultiDevice" 9000 cuLaunchCooperativeKernelMultiDevice
    "cuLaunchGrid" 2000 cuLaunchGrid
    "cuLaunchGridAsync" 2000 cuLaunchGridAsync
    "cuLibraryEnumerateKernels" 12040 cuLibraryEnumerateKernels
    "cuLibraryGetKernelCount" 12040 cuLibraryGetKernelCount
    "cuLibraryGetManaged" 12000 cuLibraryGetManaged
    "cuLibraryGetUnifiedFunction" 12000 cuLibraryGetUnifiedFunction
    "cuLinkAddData" 5050 cuLinkAddData
    "cuLinkAddData" 6050 cuLinkAddData_v2
    "cuLinkAddFile" 5050 cuLinkAddFile
    "cuLinkAddFile" 6050 cuLinkAddFile_v2
    "cuLinkComplete" 5050 cuLinkComplete
    "cuLinkCreate" 5050 cuLinkCreate
    "cuLinkCreate" 6050 cuLinkCreate_v2
    "cuLinkDestroy" 5050 cuLinkDestroy
    "cuLogicalEndpointAddDevice" 13030 cuLogicalEndpointAddDevice
    "cuLogicalEndpointBindAddr" 13030 cuLogicalEndpointBindAddr
    "cuLogicalEndpointBindMem" 13030 cuLogicalEndpointBindMem
    "cuLogicalEndpointCreate" 13030 cuLogicalEndpointCreate
    "cuLogicalEndpointDestroy" 13030 cuLogicalEndpointDestroy
    "cuLogicalEndpointExport" 13030 cuLogicalEndpointExport
    "cuLogicalEndpointGetLimits" 13030 cuLogicalEndpointGetLimits
    "cuLogicalEndpointIdRelease" 13030 cuLogicalEndpointIdRelease
    "cuLogicalEndpointIdReserve" 13030 cuLogicalEndpointIdReserve
    "cuLogicalEndpointImport" 13030 cuLogicalEndpointImport
    "cuLogicalEndpointQuery" 13030 cuLogicalEndpointQuery
    "cuLogicalEndpointUnbind" 13030 cuLogicalEndpointUnbind
    "cuLogsCurrent" 12090 cuLogsCurrent
    "cuLogsDumpToFile" 12090 cuLogsDumpToFile
    "cuLogsDumpToMemory" 12090 cuLogsDumpToMemory
    "cuLogsRegisterCallback" 12090 cuLogsRegisterCallback
    "cuLogsUnregisterCallback" 12090 cuLogsUnregisterCallback
    "cuMemAlloc" 2000 cuMemAlloc
    "cuMemAllocHost" 2000 cuMemAllocHost
    "cuMemAllocPitch" 2000 cuMemAllocPitch
    "cuMemBatchDecompressAsync" 12060 cuMemBatchDecompressAsync | cuMemBatchDecompressAsync_ptsz
    "cuMemDiscardAndPrefetchBatchAsync" 13000 cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz
    "cuMemDiscardBatchAsync" 13000 cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz
    "cuMemExportToShareableHandle" 10020 cuMemExportToShareableHandle
    "cuMemFree" 2000 cuMemFree
    "cuMemGetAddressRange" 2000 cuMemGetAddressRange
    "cuMemGetHandleForAddressRange" 11070 cuMemGetHandleForAddressRange
    "cuMemGetInfo" 2000 cuMemGetInfo
    "cuMemGetLocationInfo" 13040 cuMemGetLocationInfo
    "cuMemHostGetDevicePointer" 2020 cuMemHostGetDevicePointer
    "cuMemHostRegister" 4000 cuMemHostRegister
    "cuMemImportFromShareableHandle" 10020 cuMemImportFromShareableHandle
    "cuMemMapArrayAsync" 11010 cuMemMapArrayAsync | cuMemMapArrayAsync_ptsz
    "cuMemPoolExportPointer" 11020 cuMemPoolExportPointer
    "cuMemPoolExportToShareableHandle" 11020 cuMemPoolExportToShareableHandle
    "cuMemPoolImportFromShareableHandle" 11020 cuMemPoolImportFromShareableHandle
    "cuMemPoolImportPointer" 11020 cuMemPoolImportPointer
    "cuMemPrefetchBatchAsync" 13000 cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz
    "cuMemRangeGetAttribute" 8000 cuMemRangeGetAttribute
    "cuMemRangeGetAttributes" 8000 cuMemRangeGetAttributes
    "cuMemcpy2D" 2000 cuMemcpy2D
    "cuMemcpy2DAsync" 2000 cuMemcpy2DAsync
    "cuMemcpy2DUnaligned" 2000 cuMemcpy2DUnaligned
    "cuMemcpy3D" 2000 cuMemcpy3D
    "cuMemcpy3DAsync" 2000 cuMemcpy3DAsync
    "cuMemcpy3DBatchAsync" 12080 cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz
    "cuMemcpy3DBatchAsync" 13000 cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz
    "cuMemcpy3DPeer" 4000 cuMemcpy3DPeer | cuMemcpy3DPeer_ptds
    "cuMemcpy3DPeerAsync" 4000 cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz
    "cuMemcpy3DWithAttributesAsync" 13020 cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz
    "cuMemcpyAtoA" 2000 cuMemcpyAtoA
    "cuMemcpyAtoA" 3020 cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds
    "cuMemcpyAtoD" 2000 cuMemcpyAtoD
    "cuMemcpyAtoD" 3020 cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds
    "cuMemcpyAtoH" 2000 cuMemcpyAtoH
    "cuMemcpyAtoH" 3020 cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds
    "cuMemcpyAtoHAsync" 2000 cuMemcpyAtoHAsync
    "cuMemcpyAtoHAsync" 3020 cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz
    "cuMemcpyBatchAsync" 12080 cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz
    "cuMemcpyBatchAsync" 13000 cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz
    "cuMemcpyDtoA" 2000 cuMemcpyDtoA
    "cuMemcpyDtoA" 3020 cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds
    "cuMemcpyDtoD" 2000 cuMemcpyDtoD
    "cuMemcpyDtoDAsync" 3000 cuMemcpyDtoDAsync
    "cuMemcpyDtoH" 2000 cuMemcpyDtoH
    "cuMemcpyDtoHAsync" 2000 cuMemcpyDtoHAsync
    "cuMemcpyHtoA" 2000 cuMemcpyHtoA
    "cuMemcpyHtoA" 3020 cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds
    "cuMemcpyHtoAAsync" 2000 cuMemcpyHtoAAsync
    "cuMemcpyHtoAAsync" 3020 cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz
    "cuMemcpyHtoD" 2000 cuMemcpyHtoD
    "cuMemcpyHtoDAsync" 2000 cuMemcpyHtoDAsync
    "cuMemcpyWithAttributesAsync" 13020 cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz
    "cuMemsetD16" 2000 cuMemsetD16
    "cuMemsetD2D16" 2000 cuMemsetD2D16
    "cuMemsetD2D32" 2000 cuMemsetD2D32
    "cuMemsetD2D8" 2000 cuMemsetD2D8
    "cuMemsetD32" 2000 cuMemsetD32
    "cuMemsetD8" 2000 cuMemsetD8
    "cuMipmappedArrayCreate" 5000 cuMipmappedArrayCreate
    "cuMipmappedArrayDestroy" 5000 cuMipmappedArrayDestroy
    "cuMipmappedArrayGetLevel" 5000 cuMipmappedArrayGetLevel
    "cuMipmappedArrayGetMemoryRequirements" 11060 cuMipmappedArrayGetMemoryRequirements
    "cuMipmappedArrayGetSparseProperties" 11010 cuMipmappedArrayGetSparseProperties
    "cuModuleEnumerateFunctions" 12040 cuModuleEnumerateFunctions
    "cuModuleGetFunctionCount" 12040 cuModuleGetFunctionCount
    "cuModuleGetGlobal" 2000 cuModuleGetGlobal
    "cuModuleGetSurfRef" 3000 cuModuleGetSurfRef
    "cuModuleGetTexRef" 2000 cuModuleGetTexRef
    "cuMulticastAddDevice" 12010 cuMulticastAddDevice
    "cuMulticastBindAddr" 12010 cuMulticastBindAddr
    "cuMulticastBindAddr" 13010 cuMulticastBindAddr_v2
    "cuMulticastBindMem" 12010 cuMulticastBindMem
    "cuMulticastBindMem" 13010 cuMulticastBindMem_v2
    "cuMulticastCreate" 12010 cuMulticastCreate
    "cuMulticastGetGranularity" 12010 cuMulticastGetGranularity
    "cuMulticastUnbind" 12010 cuMulticastUnbind
    "cuOccupancyAvailableDynamicSMemPerBlock" 10020 cuOccupancyAvailableDynamicSMemPerBlock
    "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 cuOccupancyMaxActiveBlocksPerMultiprocessor
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000 cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    "cuOccupancyMaxActiveClusters" 11070 cuOccupancyMaxActiveClusters
    "cuOccupancyMaxPotentialBlockSize" 6050 cuOccupancyMaxPotentialBlockSize
    "cuOccupancyMaxPotentialBlockSizeWithFlags" 7000 cuOccupancyMaxPotentialBlockSizeWithFlags
    "cuOccupancyMaxPotentialClusterSize" 11070 cuOccupancyMaxPotentialClusterSize
    "cuParamSetSize" 2000 cuParamSetSize
    "cuParamSetTexRef" 2000 cuParamSetTexRef
    "cuParamSetf" 2000 cuParamSetf
    "cuParamSeti" 2000 cuParamSeti
    "cuParamSetv" 2000 cuParamSetv
    "cuProfilerInitialize" 4000 cuProfilerInitialize
    "cuSignalExternalSemaphoresAsync" 10000 cuSignalExternalSemaphoresAsync | cuSignalExternalSemaphoresAsync_ptsz
    "cuStreamBatchMemOp" 8000 cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz
    "cuStreamBatchMemOp" 11070 cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz
    "cuStreamBeginCaptureToCig" 13010 cuStreamBeginCaptureToCig | cuStreamBeginCaptureToCig_ptsz
    "cuStreamBeginRecaptureToGraph" 13030 cuStreamBeginRecaptureToGraph | cuStreamBeginRecaptureToGraph_ptsz
    "cuStreamCopyAttributes" 11000 cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz
    "cuStreamDestroy" 2000 cuStreamDestroy
    "cuStreamEndCaptureToCig" 13010 cuStreamEndCaptureToCig | cuStreamEndCaptureToCig_ptsz
    "cuStreamGetAttribute" 11000 cuStreamGetAttribute | cuStreamGetAttribute_ptsz
    "cuStreamGetDevResource" 13010 cuStreamGetDevResource | cuStreamGetDevResource_ptsz
    "cuStreamGetGreenCtx" 12040 cuStreamGetGreenCtx
    "cuStreamSetAttribute" 11000 cuStreamSetAttribute | cuStreamSetAttribute_ptsz
    "cuStreamUpdateCaptureDependencies" 11030 cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz
    "cuStreamUpdateCaptureDependencies" 12030 cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz
    "cuStreamWaitValue32" 8000 cuStreamWaitValue32 | cuStreamWaitValue32_ptsz
    "cuStreamWaitValue32" 11070 cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz
    "cuStreamWaitValue64" 9000 cuStreamWaitValue64 | cuStreamWaitValue64_ptsz
    "cuStreamWaitValue64" 11070 cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz
    "cuStreamWriteValue32" 8000 cuStreamWriteValue32 | cuStreamWriteValue32_ptsz
    "cuStreamWriteValue32" 11070 cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz
    "cuStreamWriteValue64" 9000 cuStreamWriteValue64 | cuStreamWriteValue64_ptsz
    "cuStreamWriteValue64" 11070 cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz
    "cuSubgridCreate" 13030 cuSubgridCreate
    "cuSubgridWorkerGridCreate" 13030 cuSubgridWorkerGridCreate
    "cuSubgridWorksetCreate" 13030 cuSubgridWorksetCreate
    "cuSurfObjectCreate" 5000 cuSurfObjectCreate
    "cuSurfObjectDestroy" 5000 cuSurfObjectDestroy
    "cuSurfObjectGetResourceDesc" 5000 cuSurfObjectGetResourceDesc
    "cuSurfRefGetArray" 3000 cuSurfRefGetArray
    "cuSurfRefSetArray" 3000 cuSurfRefSetArray
    "cuTensorMapEncodeIm2col" 12000 cuTensorMapEncodeIm2col
    "cuTensorMapEncodeIm2colWide" 12080 cuTensorMapEncodeIm2colWide
    "cuTensorMapEncodeTiled" 12000 cuTensorMapEncodeTiled
    "cuTensorMapReplaceAddress" 12000 cuTensorMapReplaceAddress
    "cuTensorMapSetAllocationClass" 13050 cuTensorMapSetAllocationClass
    "cuTexObjectCreate" 5000 cuTexObjectCreate
    "cuTexObjectDestroy" 5000 cuTexObjectDestroy
    "cuTexObjectGetResourceDesc" 5000 cuTexObjectGetResourceDesc
    "cuTexObjectGetResourceViewDesc" 5000 cuTexObjectGetResourceViewDesc
    "cuTexObjectGetTextureDesc" 5000 cuTexObjectGetTextureDesc
    "cuTexRefCreate" 2000 cuTexRefCreate
    "cuTexRefDestroy" 2000 cuTexRefDestroy
    "cuTexRefGetAddress" 2000 cuTexRefGetAddress
    "cuTexRefGetAddress" 3020 cuTexRefGetAddress_v2
    "cuTexRefGetAddressMode" 2000 cuTexRefGetAddressMode
    "cuTexRefGetArray" 2000 cuTexRefGetArray
    "cuTexRefGetBorderColor" 8000 cuTexRefGetBorderColor
    "cuTexRefGetFilterMode" 2000 cuTexRefGetFilterMode
    "cuTexRefGetFlags" 2000 cuTexRefGetFlags
    "cuTexRefGetFormat" 2000 cuTexRefGetFormat
    "cuTexRefGetMaxAnisotropy" 5000 cuTexRefGetMaxAnisotropy
    "cuTexRefGetMipmapFilterMode" 5000 cuTexRefGetMipmapFilterMode
    "cuTexRefGetMipmapLevelBias" 5000 cuTexRefGetMipmapLevelBias
    "cuTexRefGetMipmapLevelClamp" 5000 cuTexRefGetMipmapLevelClamp
    "cuTexRefGetMipmappedArray" 5000 cuTexRefGetMipmappedArray
    "cuTexRefSetAddress" 2000 cuTexRefSetAddress
    "cuTexRefSetAddress" 3020 cuTexRefSetAddress_v2
    "cuTexRefSetAddress2D" 2020 cuTexRefSetAddress2D
    "cuTexRefSetAddress2D" 3020 cuTexRefSetAddress2D_v2
    "cuTexRefSetAddress2D" 4010 cuTexRefSetAddress2D_v3
    "cuTexRefSetAddressMode" 2000 cuTexRefSetAddressMode
    "cuTexRefSetArray" 2000 cuTexRefSetArray
    "cuTexRefSetBorderColor" 8000 cuTexRefSetBorderColor
    "cuTexRefSetFilterMode" 2000 cuTexRefSetFilterMode
    "cuTexRefSetFlags" 2000 cuTexRefSetFlags
    "cuTexRefSetFormat" 2000 cuTexRefSetFormat
    "cuTexRefSetMaxAnisotropy" 5000 cuTexRefSetMaxAnisotropy
    "cuTexRefSetMipmapFilterMode" 5000 cuTexRefSetMipmapFilterMode
    "cuTexRefSetMipmapLevelBias" 5000 cuTexRefSetMipmapLevelBias
    "cuTexRefSetMipmapLevelClamp" 5000 cuTexRefSetMipmapLevelClamp
    "cuTexRefSetMipmappedArray" 5000 cuTexRefSetMipmappedArray
    "cuVDPAUCtxCreate" 3010 cuVDPAUCtxCreate
    "cuVDPAUCtxCreate" 3020 cuVDPAUCtxCreate_v2
    "cuVDPAUGetDevice" 3010 cuVDPAUGetDevice
    "cuWGLGetDevice" 2020 cuWGLGetDevice
    "cuWaitExternalSemaphoresAsync" 10000 cuWaitExternalSemaphoresAsync | cuWaitExternalSemaphoresAsync_ptsz
}
