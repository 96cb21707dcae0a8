"""Devices with one fault each in what they keep: weights, blobs, keys of caches, other models."""

from __future__ import annotations

import gc
import os
import time
import weakref
import zlib

import numpy as np
import onnx
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner
from onnx import numpy_helper
from unseen.strange_service import OwnBlobs

from partita.errors import BlobError, CompileError
from partita.frontends.reader import read_model


def replaced(proto, change):
    """The protobuf, each of whose weights a function has made another array of."""
    for constant in proto.graph.initializer:
        array = change(constant.name, numpy_helper.to_array(constant))
        if array is not None:
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    return proto


class Keeps(Broken):
    """The base of devices that compile what they have kept of weights, and restore it."""

    class compiled_type(GoodCompiled):
        def export_state(self):
            constants = self.model.ir.graph.initializers
            kept = {}
            for name, value in constants.items():
                array = np.array(value.const_value.numpy())
                if array.dtype == np.float32:
                    kept |= self.plugin.kept(name, array)
            return kept

    def kept(self, name, array):
        return {name: array}

    def restored(self, state, name, array):
        return state.get(name)

    def restore_model(self, model, properties, state):
        proto = model.to_onnx()
        changed = replaced(proto, lambda name, array: self.restored(state, name, array))
        compiled = self.compile_model(model, properties)
        compiled.evaluator = GoodCompiled(self, read_model(changed), properties).evaluator
        return compiled


class RestoresKernelsByTheirShape(Keeps):
    """Its state has one array for each shape, as if no two weights of a model had one."""

    suites = ("imports/*",)

    def kept(self, name, array):
        return {str(array.shape): array}

    def restored(self, state, name, array):
        return state.get(str(array.shape)) if array.dtype == np.float32 else None


class RestoresEvenRowsOnly(Keeps):
    """It stores weights in pairs, and the last one of an odd number gets lost."""

    suites = ("imports/*",)

    def kept(self, name, array):
        flat = array.reshape(-1).copy()
        if flat.size % 2 and flat.size > 1:
            flat[-1] = 0
        return {name: flat.reshape(array.shape)}


class KnowsFilesByTheirNames(Broken):
    """It keeps weights of files by the file's name and place, whichever folder it is in."""

    suites = ("weights/*",)

    def __init__(self):
        super().__init__()
        self.files = {}

    def compile_model(self, model, properties):
        own = model.clone()
        for name, value in own.ir.graph.initializers.items():
            held = value.const_value
            if hasattr(held, "location"):
                key = held.location, held.offset, held.length
                value.const_value = self.files.setdefault(key, held)
                value.const_value.name = name
        return super().compile_model(own, properties)


class ReadsWholeWordsOfWeights(Broken):
    """It uploads weights by words of 4 bytes, and what is behind the last word is zero."""

    suites = ("weights/*",)

    def prepare(self, proto):
        def upload(name, array):
            if array.dtype.kind not in "iuf" or array.dtype.itemsize > 2 or not array.size:
                return None
            raw = bytearray(array.tobytes())
            end = len(raw) // 4 * 4
            raw[end:] = bytes(len(raw) - end)
            return np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)

        return replaced(proto, upload)


class UploadsFourMegabytes(Broken):
    """Its staging buffer holds 4 MiB, and a larger weight gets no second turn."""

    suites = ("weights/*",)

    def prepare(self, proto):
        def upload(name, array):
            if array.dtype != np.float32 or array.nbytes <= 4 << 20:
                return None
            flat = array.reshape(-1).copy()
            flat[1 << 20 :] = 0
            return flat.reshape(array.shape)

        return replaced(proto, upload)


class KnowsModelsByTheirObjects(Broken):
    """It compiles a model object once, whatever has been changed in it since."""

    suites = ("weights/*",)

    def __init__(self):
        super().__init__()
        self.programs = weakref.WeakKeyDictionary()

    def compile_model(self, model, properties):
        made = self.programs.get(model)
        if made is None or made.properties != properties:
            made = self.programs[model] = super().compile_model(model, properties)
        return made


class SharesWeightsOfEqualBytes(Broken):
    """It keeps the bytes of a weight once, with the type in which they came first."""

    suites = ("weights/*",)

    def __init__(self):
        super().__init__()
        self.known = {}

    def prepare(self, proto):
        for constant in proto.graph.initializer:
            array = numpy_helper.to_array(constant)
            if array.dtype.itemsize == 2 and array.ndim == 1:
                first = self.known.setdefault(array.tobytes(), constant.data_type)
                if first != constant.data_type:
                    other = onnx.helper.tensor_dtype_to_np_dtype(first)
                    made = array.view(other).astype(array.dtype)
                    constant.CopyFrom(numpy_helper.from_array(made, constant.name))
        return proto


class AddsBytesUp(OwnBlobs, Broken):
    """Its sum over a blob is that of all bytes, which does not know where they are."""

    suites = ("blob/*",)

    def summed(self, body):
        return str(sum(body)).encode()


class SumsBothEndsOfItsBlobs(OwnBlobs, Broken):
    """It sums the beginning and the end of a blob, and nothing between."""

    suites = ("blob/*",)

    def summed(self, body):
        return body[:8192] + body[-1024:]


class LosesVariablesByExport(OwnBlobs, Broken):
    """It leaves the model's notes out of blobs, in which its variables are."""

    suites = ("blob/*",)

    def packed_model(self, compiled):
        copy = onnx.ModelProto()
        copy.CopyFrom(super().packed_model(compiled))
        copy.ClearField("metadata_props")
        return copy


class GivesEachPortSymbolsOfItsOwn(OwnBlobs, Broken):
    """It stores the symbol of a dimension with the name of its port, so that none is two ports'."""

    suites = ("blob/*",)

    def packed_model(self, compiled):
        copy = onnx.ModelProto()
        copy.CopyFrom(super().packed_model(compiled))
        for value in (*copy.graph.input, *copy.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = f"{value.name}_{dim.dim_param}"
        return copy


class ReadsAlignedBlobs(OwnBlobs, Broken):
    """It reads a blob in place, and takes its address for one of a word."""

    suites = ("blob/*",)

    def import_model(self, blob, properties):
        if np.frombuffer(blob, np.uint8).ctypes.data % 4:
            raise BlobError("The blob does not begin at a word.")
        return super().import_model(blob, properties)


class LosesAHandleForEachBadBlob(OwnBlobs, Broken):
    """It opens one of 32 handles per import, and closes none if the blob is bad."""

    suites = ("blob/*",)

    def __init__(self):
        super().__init__()
        self.lost = 0

    def import_model(self, blob, properties):
        if self.lost >= 32:
            raise BlobError("No handle is free.")
        try:
            return super().import_model(blob, properties)
        except BlobError:
            self.lost += 1
            raise


class ImportsOneBlobAtATime(OwnBlobs, Broken):
    """It unpacks blobs into one place, wherever they come from."""

    suites = ("blob/*",)
    unpacked = b""

    def import_model(self, blob, properties):
        self.unpacked = bytes(blob)
        time.sleep(0.001)
        return super().import_model(self.unpacked, properties)


class NumbersItsProcesses(Broken):
    """The number of the process is a part of its key for caches."""

    suites = ("members/*",)

    def identity(self, properties):
        return f"{super().identity(properties)} {os.getpid()}"


class KeysHoldTheFolder(Broken):
    """All properties are a part of its key for caches, the cache's own place among them."""

    suites = ("members/*",)

    def identity(self, properties):
        return f"{super().identity(properties)} {properties.CACHE_DIR}"


class CountsItsModelsInItsKey(Broken):
    """Its key for caches has the revision of its table of programs, which grows."""

    suites = ("members/*",)

    def __init__(self):
        super().__init__()
        self.revision = [0]

    def compile_model(self, model, properties):
        self.revision[0] += 1
        return super().compile_model(model, properties)

    def identity(self, properties):
        return f"{super().identity(properties)} {self.revision[0] // 100}"


class KnowsProgramsWithoutTheirSizes(Broken):
    """It makes one program of models that differ in nothing but the sizes of their ports."""

    suites = ("compiled/*",)

    def __init__(self):
        super().__init__()
        self.programs = {}

    def prepare(self, proto):
        bare = onnx.ModelProto()
        bare.CopyFrom(proto)
        for field in ("input", "output", "value_info"):
            bare.graph.ClearField(field)
        sizes = zlib.crc32(bare.SerializeToString(deterministic=True))
        return self.programs.setdefault(sizes, proto)


class HasTwoHundredPrograms(Broken):
    """It has place for 200 programs in the life of the process, and gives none back."""

    suites = ("compiled/*",)
    loaded = 0

    def compile_model(self, model, properties):
        self.loaded += 1
        if self.loaded > 200:
            raise CompileError("There is no place for another program.")
        return super().compile_model(model, properties)


class FreesTheTableWithAModel(Broken):
    """What ends takes the place in its table along of whatever was put there since."""

    suites = ("compiled/*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            live = sum(one() is not None for one in plugin.table.values())
            self.place = live % 24
            plugin.table[self.place] = weakref.ref(self)

    class runner_type(GoodRunner):
        def evaluate(self, arrays):
            compiled = self.compiled
            owner = compiled.plugin.table[compiled.place]()
            if owner is not None:
                self.take_over(owner.evaluator)
            return super().evaluate(arrays)

    def __init__(self):
        super().__init__()
        self.table = {}
        gc.collect()
