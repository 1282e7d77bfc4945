# The wrapper libraries. libnvc-shim-api.so: all rows, and those objects of libnvc-shim.so that enforce a quota.
# libnvc-shim-managed.so: the rows of managed.def, without a quota. -Bsymbolic: a table refers to the library's own functions,
# whatever symbols a program defines.
API := $(filter-out shim/api/mappings,$(API))
API_SHARED := $(filter rm/abi%,$(RM)) $(addprefix shim/,limits region admission identity lock raw plain elf)
API_LINK := -Wl,-Bsymbolic,--gc-sections,--no-undefined-version,--version-script=$(HERE)shim/api/exports.map
API_ROWS := $(addprefix $(HERE)shim/api/,managed.def rows.def)
MANAGED := $(addprefix shim/managed/,names dlsym stub next proc_address refused mappings) \
           $(addprefix shim/,plain raw elf)

$(BUILD)/shim/api/names.h: $(HERE)shim/api/names.py $(API_ROWS)
	@mkdir -p $(@D)
	$(PYTHON) $^ > $@

$(BUILD)/shim/managed/names.h: $(HERE)shim/api/names.py $(HERE)shim/api/managed.def
	@mkdir -p $(@D)
	$(PYTHON) $^ > $@

$(call objects,$(API) $(MANAGED)): $(API_ROWS)
$(foreach table,api managed,$(eval $(BUILD)/shim/$(table)/names.o: $(BUILD)/shim/$(table)/names.h))
$(foreach table,api managed,$(eval $(BUILD)/shim/$(table)/names.o: ALL_CFLAGS += -I$(BUILD)/shim/$(table)))

$(BUILD)/shim/managed/%.o: ALL_CFLAGS += -DAPI_MANAGED -ffunction-sections
$(BUILD)/shim/managed/%.o: $(HERE)shim/api/%.c $(HEADERS) $(HERE)Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c -o $@ $<

$(BUILD)/libnvc-shim-api.so: $(call objects,$(API) $(API_SHARED)) $(HERE)shim/api/exports.map
	$(CC) $(CFLAGS) -shared -nostartfiles -Wl,-soname,libnvc-shim-api.so $(PRELOADED) $(API_LINK) $(LDFLAGS) -o $@ $(filter %.o,$^)

$(BUILD)/libnvc-shim-managed.so: $(call objects,$(MANAGED)) $(HERE)shim/api/exports.map
	$(CC) $(CFLAGS) -shared -nostartfiles -Wl,-soname,libnvc-shim-managed.so $(PRELOADED) $(API_LINK) $(LDFLAGS) -o $@ $(filter %.o,$^)
