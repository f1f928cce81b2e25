package routes

import (
	"sync"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	builder2 "k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// InstallV2OnRequest serves what InstallV2 does, and builds it on the first request: a third of a start's work was
// documents that nobody reads. The first server of the chain adds CRDs to its own, and needs it at once.
func (oa OpenAPI) InstallV2OnRequest(isFirst bool, c *restful.Container, mux *mux.PathRecorderMux) (*handler.OpenAPIService, *spec.Swagger) {
	if isFirst {
		return oa.InstallV2(c, mux)
	}
	services := restfuladapter.AdaptWebServices(c.RegisteredWebServices())
	document := cached.Func(func() (*spec.Swagger, string, error) {
		document, err := builder2.BuildOpenAPISpecFromRoutes(services, oa.Config)
		if err != nil {
			return nil, "", err
		}
		document.Definitions = handler.PruneDefaults(document.Definitions)
		return document, "the only one", nil
	})
	service := handler.NewOpenAPIServiceLazy(cached.Once(document))
	service.RegisterOpenAPIVersionedService("/openapi/v2", mux)
	return service, nil
}

// InstallV3OnRequest serves what InstallV3 does, and builds each group's on the first request.
func (oa OpenAPI) InstallV3OnRequest(c *restful.Container, mux *mux.PathRecorderMux) *handler3.OpenAPIService {
	service := handler3.NewOpenAPIService()
	if err := service.RegisterOpenAPIV3VersionedService("/openapi/v3", mux); err != nil {
		panic(err)
	}
	var building sync.Mutex // the builder completes the configuration that all groups share
	for _, webService := range c.RegisteredWebServices() {
		name := webService.RootPath()[1:]
		services := restfuladapter.AdaptWebServices([]*restful.WebService{webService})
		document := cached.Func(func() (*spec3.OpenAPI, string, error) {
			building.Lock()
			defer building.Unlock()
			document, err := builder3.BuildOpenAPISpecFromRoutes(services, oa.V3Config)
			if err != nil {
				return nil, "", err
			}
			if group, version, ok := groupVersionFromPath(name); ok {
				filterScopedGVKs(document, group, version)
			}
			return document, "the only one", nil
		})
		service.UpdateGroupVersionLazy(name, cached.Once(document))
	}
	return service
}
