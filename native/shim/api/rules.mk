# libnvc-shim-api.so: the function table, and of the other library what keeps a quota. -Bsymbolic: the table's functions are
# our own, whatever a program calls its.
API_SHARED := $(filter rm/abi%,$(RM)) $(addprefix shim/,limits region admission identity lock raw plain)
API_LINK := -Wl,-Bsymbolic,--gc-sections,--no-undefined-version,--version-script=$(HERE)shim/api/exports.map

$(BUILD)/shim/api/names.h: $(HERE)shim/api/names.py $(HERE)shim/api/rows.def
	@mkdir -p $(@D)
	$(PYTHON) $^ > $@

$(call objects,$(API)): $(HERE)shim/api/rows.def
$(BUILD)/shim/api/names.o: $(BUILD)/shim/api/names.h
$(BUILD)/shim/api/names.o: ALL_CFLAGS += -I$(BUILD)/shim/api

$(BUILD)/libnvc-shim-api.so: $(call objects,$(API) $(API_SHARED)) $(HERE)shim/api/exports.map
	$(CC) $(CFLAGS) -shared -nostartfiles -Wl,-soname,libnvc-shim-api.so $(HARDENING) $(API_LINK) $(LDFLAGS) -o $@ $(filter %.o,$^)
