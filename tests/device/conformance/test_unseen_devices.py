"""Some of the broken devices that the kit had not seen, each beside the checks meant for its kind.

All of them: ``python benchmarks/broken_plugins.py --unseen``.
"""

from __future__ import annotations

import pytest
from test_broken_devices import outcomes_of

CAUGHT = {
    ("unseen_form", "MakesIdentifiersOfNames"): ["ports/names_stay_apart"],
    ("unseen_form", "OrdersInputsByName"): ["ports/twenty*"],
    ("unseen_form", "ConcatenatesEight"): ["ports/an_operation*"],
    ("unseen_form", "GivesNoDetail"): ["query/every*"],
    ("unseen_form", "TiresOfQuestions"): ["query/the_same*"],
    ("unseen_form", "NeedsAnInput"): ["ports/ports_may*"],
    ("unseen_runs", "HandsOutItsInputs"): ["sharing/outputs_have*"],
    ("unseen_runs", "OneBufferPerThread"): ["sharing/models*"],
    ("unseen_runs", "PlansBySize"): ["sharing/equal*"],
    ("unseen_runs", "ReadsAligned"): ["sharing/inputs_may*"],
    ("unseen_runs", "ReturnsNarrowIndices"): ["sharing/outputs_are*"],
    ("unseen_runs", "RemembersItsInputs"): ["resources/inputs*"],
    ("unseen_attributes", "IgnoresConvDilations"): ["attributes/Conv/dilations"],
    ("unseen_attributes", "ReadsOldSoftmaxAsNew"): ["opsets/*oftmax/*"],
    ("unseen_form", "DeclinesWhatItCompiledBefore"): ["request/infers", "query/the_same*"],
    ("unseen_form", "SameIdentityForAllProperties"): ["blob/the_cache*"],
    ("unseen_form", "WorksInItsOwnFolder"): ["resources/the_process*"],
    ("unseen_runs", "CutsTexts"): ["values/Identity/string"],
    ("unseen_attributes", "DropsOldStepsOfPools"): ["opsets/AveragePool/*"],
    ("unseen_values", "AddsIntegersAsSingles"): ["values/Add/int*"],
    ("unseen_values", "SumsIntegersAsDoubles"): ["values/ReduceSum/*int*"],
    ("unseen_values", "MultipliesIntegersAsSingles"): ["values/MatMul/int32"],
    ("unseen_values", "IntegerPowersAsSingles"): ["values/Pow/int32"],
    ("unseen_values", "CastsDoublesTwice"): ["values/Cast/double"],
    ("unseen_values", "TanhOfInfinityIsNan"): ["values/Tanh/float"],
    ("unseen_values", "SelectsAsDoubles"): ["types/Where/*"],
    ("unseen_values", "TilesNothingOnce"): ["sizes/Tile/empty"],
    ("unseen_values", "ReductionsOfDoublesInSingles"): ["types/ReduceSum/double/*"],
    ("unseen_values", "ForgetsColumnsBehindSixteens"): ["sizes/MatMul/*"],
    ("unseen_values", "IgnoresNanInMax"): ["values/Max/float", "values/Min/float"],
    ("unseen_contract", "TransfersThroughOneBuffer"): ["plugin/transferred*"],
    ("unseen_contract", "RemembersVerdictsByName"): ["query/operations*"],
    ("unseen_contract", "LeaksFailedRuns"): ["resources/failed*"],
    ("unseen_contract", "RemembersAnswersByTheEnds"): ["request/every_element*"],
    ("unseen_contract", "StaysOnOneCore"): ["resources/the_process*"],
    ("unseen_contract", "CountersFailBeforeTheFirstRun"): ["properties/counters*"],
    ("unseen_contract", "CountsNanoseconds"): ["properties/counters*"],
    ("unseen_contract", "CountsHostMemoryInWords"): ["boundary/offers*"],
    ("unseen_contract", "KeepsTextsAsNumpyDoes"): ["values/Identity/string"],
    ("unseen_numerics", "SkipsZerosInProducts"): ["values/MatMul/float"],
    ("unseen_numerics", "NormalizesHalvesInHalves"): ["values/LayerNormalization/float16"],
    ("unseen_numerics", "PlacesOfMaximaRestart"): ["random/MaxPool/*", "types/MaxPool/*"],
    ("unseen_numerics", "RunsAllSteps"): ["random/LSTM/*", "types/LSTM/*"],
    ("unseen_numerics", "EinsumOrdersByAppearance"): ["random/Einsum/*", "types/Einsum/*"],
    ("unseen_form", "CountsOperationsThatAreNotThere"): ["properties/counters*"],
    ("unseen_form", "SetsEnvironmentVariables"): ["resources/the_process*"],
    ("unseen_runs", "KeepsModelsAlive"): ["resources/models*"],
    ("unseen_runs", "ReturnsWhatCannotBeWritten"): ["sharing/outputs_are*"],
    ("unseen_runs", "RaisesItsOwnErrors"): ["faults/a_failing*"],
    ("unseen_runs", "FillsTheFirstOutputOnly"): ["request/*output*"],
    ("unseen_runs", "ReadsLargeInputsByLines"): ["sharing/inputs_may*"],
    ("unseen_values", "BroadcastsTheConditionWrongly"): ["sizes/Where/broadcast"],
    ("unseen_values", "SlicesBackwardsOneShort"): ["random/Slice/*", "types/Slice/*"],
    ("unseen_values", "PadsDoublesWithZero"): ["types/Pad/int*"],
    ("unseen_values", "VarianceBySubtraction"): ["values/LayerNormalization/float"],
    ("unseen_values", "ComparesAsDoubles"): ["values/Greater/int64"],
    ("unseen_values", "SortsIntegersAsDoubles"): ["values/TopK/*int*"],
    ("unseen_values", "FindsNothingInScalars"): ["sizes/NonZero/scalars"],
    ("unseen_values", "ResizesDoublesInSingles"): ["types/Resize/double/*"],
    ("unseen_values", "FindsLargestIntegerAsDouble"): ["values/ArgMax/int64"],
    ("unseen_attributes", "PicksOldNeighbours"): ["opsets/Upsample/*"],
    ("unseen_attributes", "IgnoresGlobalLpPoolP"): ["attributes/GlobalLpPool/*"],
    ("unseen_attributes", "IgnoresLSTMClip"): ["attributes/LSTM/clip"],
    ("unseen_attributes", "IgnoresLSTMActivationAlpha"): ["attributes/LSTM/*"],
    ("unseen_contract", "FlushesSubnormalInputs"): ["ports/weights*"],
    ("unseen_numerics", "IgnoresStringNormalizerIsCaseSensitive"): ["*/StringNormalizer/*"],
    ("unseen_numerics", "BfloatsAreCut"): ["values/Cast/float"],
    ("unseen_numerics", "OldResizesCountFromTheRight"): ["opsets/Resize/*"],
    ("unseen_numerics", "ScatteredSumsLoseRepeats"): ["random/ScatterElements/*"],
    ("unseen_habits", "SoftmaxOfNothingIsZero"): ["values/Softmax/float"],
    ("unseen_habits", "UnsqueezesInTheOrderGiven"): ["random/Unsqueeze/*", "types/Unsqueeze/*"],
    ("unseen_habits", "SplitsAsNumpyDoes"): ["random/Split/*"],
    ("unseen_habits", "CumulatesHalvesInHalves"): ["values/CumSum/float16"],
    ("unseen_habits", "MatchesTheStart"): ["random/RegexFullMatch/*"],
    ("unseen_habits", "ScalarsKeepADimension"): ["random/Reshape/*"],
    ("unseen_engines", "BranchesAsTheFirstTime"): ["request/inputs_that*"],
    ("unseen_engines", "DeduplicatesWeightsByBytes"): ["ports/equal_weights*"],
    ("unseen_engines", "ExportsAHandle"): ["blob/comes_back_in*"],
    ("unseen_engines", "IgnoresDomains"): ["query/other_domains*"],
    ("unseen_engines", "ConfiguresTheRootLogger"): ["resources/the_process*"],
    ("unseen_engines", "InsertsInPlace"): ["request/sequences*"],
    ("unseen_passes", "MergesTransposesBackwards"): ["chains/turned*"],
    ("unseen_passes", "FoldsConstantsInDoubles"): ["chains/integers*"],
    ("unseen_passes", "ForgetsWhatBodiesRead"): ["chains/read*"],
    ("unseen_passes", "FreesTheModelWithARequest"): ["compiled/requests_end*"],
    ("unseen_passes", "LosesTheDimensionOfOne"): ["sizes/Sub/broadcast"],
    ("unseen_kernels", "BroadcastsUpToRankFour"): ["sizes/Add/broadcast"],
    ("unseen_kernels", "SortsOneBlock"): ["sizes/TopK/long"],
    ("unseen_kernels", "PointwiseForgetsStrides"): ["random/Conv/*"],
    ("unseen_kernels", "ReadsTextsWithoutExponents"): ["values/Cast/string"],
    ("unseen_remote", "HasMessagesOfFourMebibytes"): ["request/large*"],
    ("unseen_remote", "LogarithmsOfSoftmax"): ["values/LogSoftmax/float"],
    ("unseen_remote", "NamesFilesByModels"): ["ports/models*"],
    ("unseen_remote", "SendsZeroWithoutSign"): ["values/Identity/float"],
    ("unseen_remote", "SumsOfMeansWrap"): ["values/ReduceMean/float16"],
}
"""Broken device to patterns of checks that must catch it."""


@pytest.mark.parametrize("fault", CAUGHT, ids=lambda fault: fault[1])
def test_fault_is_caught(fault):
    module, name = fault
    outcomes = outcomes_of(name, module, CAUGHT[fault])
    assert [o.check.name for o in outcomes if o.bad], "the kit missed it"


def test_the_correct_device_passes_the_same_checks():
    patterns = dict.fromkeys(pattern for patterns in CAUGHT.values() for pattern in patterns)
    outcomes = outcomes_of("Good", "good_device", patterns, "GOOD")
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}
